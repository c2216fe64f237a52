#include "common/tokenizer/pre_tokenizer.h"

#include <utility>

namespace smartgen::tokenizer {
namespace {

constexpr int kMaxDepth = 8;
constexpr size_t kMaxSteps = 32;

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kOneDigit = R"(\p{N})";
constexpr std::string_view kDigits = R"(\p{N}+)";
constexpr std::string_view kPunctuation = R"([\p{P}!-/:-@\[-`{-~])";

std::string EscapeRegex(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\\^$.[]|()?*+{}-#/").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

bool Flag(const nlohmann::json& section, const char* key, bool fallback) {
  const auto it = section.find(key);
  return it != section.end() && it->is_boolean() ? it->get<bool>() : fallback;
}

std::string TypeOf(const nlohmann::json& section) {
  const auto it = section.is_object() ? section.find("type") : section.end();
  return it != section.end() && it->is_string() ? it->get<std::string>() : std::string();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::ForGgml(std::string_view pre) {
  auto result = std::make_unique<PreTokenizer>();
  const auto add = [&](std::string_view pattern) {
    return result->AddRegex(pattern, Behavior::kIsolated, /*invert=*/false);
  };
  result->byte_level_ = true;
  if (pre == "default" || pre == "gpt-2" || pre == "gpt2") {
    RETURN_IF_ERROR(add(kGpt2));
  } else if (pre == "smollm") {
    RETURN_IF_ERROR(add(kOneDigit));
    RETURN_IF_ERROR(add(kGpt2));
  } else if (pre == "llama-bpe" || pre == "llama3" || pre == "llama-v3") {
    RETURN_IF_ERROR(add(kLlama3));
  } else if (pre == "qwen2" || pre == "deepseek-r1-qwen") {
    RETURN_IF_ERROR(add(kQwen2));
  } else {
    return base::Unimplemented(
        "tokenizer.ggml.pre is '{}'; supported: default, gpt-2, smollm, llama-bpe, llama3, qwen2, "
        "deepseek-r1-qwen",
        pre);
  }
  return result;
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::FromJson(
    const nlohmann::json& section) {
  auto result = std::make_unique<PreTokenizer>();
  RETURN_IF_ERROR(result->AddSection(section, 0));
  if (!result->byte_level_) {
    return base::Unimplemented(
        "tokenizer.json: pre_tokenizer has no ByteLevel; only byte-level BPE is supported");
  }
  return result;
}

absl::Status PreTokenizer::AddSection(const nlohmann::json& section, int depth) {
  if (depth > kMaxDepth || steps_.size() > kMaxSteps) {
    return base::InvalidArgument(
        "tokenizer.json: pre_tokenizer is nested deeper than {} or longer "
        "than {} steps",
        kMaxDepth, kMaxSteps);
  }
  const std::string type = TypeOf(section);
  if (type == "ByteLevel") return AddByteLevel(section);
  if (type == "Split") return AddSplit(section);
  if (type == "Digits") {
    const bool individual = Flag(section, "individual_digits", false);
    return AddRegex(individual ? kOneDigit : kDigits, Behavior::kIsolated, /*invert=*/false);
  }
  if (type == "Punctuation") {
    ASSIGN_OR_RETURN(const Behavior behavior, ParseBehavior(section));
    return AddRegex(kPunctuation, behavior, /*invert=*/false);
  }
  if (type == "Sequence") {
    const auto list = section.find("pretokenizers");
    if (list == section.end() || !list->is_array()) {
      return base::InvalidArgument(
          "tokenizer.json: pre_tokenizer Sequence: want an array 'pretokenizers'");
    }
    for (const nlohmann::json& item : *list) RETURN_IF_ERROR(AddSection(item, depth + 1));
    return absl::OkStatus();
  }
  return base::Unimplemented(
      "tokenizer.json: pre_tokenizer of type '{}'; supported: ByteLevel, Split, Digits, "
      "Punctuation, Sequence",
      type);
}

absl::Status PreTokenizer::AddByteLevel(const nlohmann::json& section) {
  byte_level_ = true;
  if (Flag(section, "add_prefix_space", true)) {
    Step step;
    step.prefix_space = true;
    steps_.push_back(std::move(step));
  }
  if (!Flag(section, "use_regex", true)) return absl::OkStatus();
  return AddRegex(kGpt2, Behavior::kIsolated, /*invert=*/false);
}

absl::StatusOr<PreTokenizer::Behavior> PreTokenizer::ParseBehavior(const nlohmann::json& section) {
  const auto it = section.find("behavior");
  const std::string name =
      it != section.end() && it->is_string() ? it->get<std::string>() : "Isolated";
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return base::InvalidArgument("tokenizer.json: pre_tokenizer behavior '{}' is unknown", name);
}

absl::Status PreTokenizer::AddSplit(const nlohmann::json& section) {
  ASSIGN_OR_RETURN(const Behavior behavior, ParseBehavior(section));
  const auto pattern = section.find("pattern");
  std::string regex;
  if (pattern != section.end() && pattern->is_object()) {
    const auto text = pattern->find("Regex");
    const auto literal = pattern->find("String");
    if (text != pattern->end() && text->is_string()) {
      regex = text->get<std::string>();
    } else if (literal != pattern->end() && literal->is_string()) {
      regex = EscapeRegex(literal->get<std::string>());
    }
  }
  if (regex.empty()) {
    return base::InvalidArgument(
        "tokenizer.json: pre_tokenizer Split: want pattern {{\"Regex\": ...}} or {{\"String\": "
        "...}}");
  }
  return AddRegex(regex, behavior, Flag(section, "invert", false));
}

absl::Status PreTokenizer::AddRegex(std::string_view pattern, Behavior behavior, bool invert) {
  Step step;
  ASSIGN_OR_RETURN(step.regex, Regex::Create(pattern));
  step.behavior = behavior;
  step.invert = invert;
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

void PreTokenizer::Cut(const Step& step, Regex::Matches& matches, std::string_view piece,
                       std::vector<std::string_view>& out) {
  const size_t first = out.size();
  bool glue_next = false;     // kMergedWithNext: the last word is a match that waits for its text
  bool last_matched = false;  // kContiguous: matches that touch are one word
  const auto add = [&](size_t begin, size_t end, bool matched) {
    if (begin == end) return;
    const std::string_view word = piece.substr(begin, end - begin);
    const auto extend = [&] {
      out.back() = std::string_view(out.back().data(), out.back().size() + word.size());
    };
    const bool any = out.size() > first;
    switch (step.behavior) {
      case Behavior::kIsolated:
        out.push_back(word);
        break;
      case Behavior::kRemoved:
        if (!matched) out.push_back(word);
        break;
      case Behavior::kMergedWithPrevious:
        matched && !last_matched && any ? extend() : out.push_back(word);
        break;
      case Behavior::kMergedWithNext:
        !matched&& glue_next ? extend() : out.push_back(word);
        break;
      case Behavior::kContiguous:
        any&& matched == last_matched ? extend() : out.push_back(word);
        break;
    }
    glue_next = matched;
    last_matched = matched;
  };
  size_t pos = 0;
  size_t begin = 0;
  size_t end = 0;
  matches.Reset(piece);
  while (matches.Next(begin, end)) {
    add(pos, begin, step.invert);
    add(begin, end, !step.invert);
    pos = end;
  }
  add(pos, piece.size(), step.invert);
}

PreTokenizer::Scratch::Scratch(const PreTokenizer& owner) {
  for (const Step& step : owner.steps_) {
    matches_.push_back(step.regex == nullptr ? nullptr
                                             : std::make_unique<Regex::Matches>(*step.regex, ""));
  }
}

const std::vector<std::string_view>& PreTokenizer::Split(std::string_view text,
                                                         Scratch& scratch) const {
  scratch.owned_.clear();
  scratch.words_.assign(1, text);
  for (size_t i = 0; i < steps_.size(); ++i) {
    scratch.next_.clear();
    for (std::string_view word : scratch.words_) {
      if (steps_[i].prefix_space && !word.starts_with(' ')) {
        word = scratch.owned_.emplace_back(" ").append(word);
      }
      if (steps_[i].regex == nullptr) {
        scratch.next_.push_back(word);
      } else {
        Cut(steps_[i], *scratch.matches_[i], word, scratch.next_);
      }
    }
    std::swap(scratch.words_, scratch.next_);
  }
  return scratch.words_;
}

}  // namespace smartgen::tokenizer
