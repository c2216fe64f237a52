#include "common/chat/prompt_guard.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "common/base/log.h"
#include "common/tokenizer/utf8.h"

namespace smartgen::chat {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 8> kUsualRoles = {
    "system", "user", "assistant", "tool", "developer", "function", "ipython", "model"};

// Blocks of 64 symbols that Python's repr() shows as they are (it escapes private-use characters,
// which would change lengths): Braille, hexagrams, Byzantine music, sign writing. Then private use.
std::vector<char32_t> Blocks() {
  std::vector<char32_t> blocks = {0x2800,  0x2840,  0x2880,  0x28C0,  0x4DC0,  0x1D000, 0x1D040,
                                  0x1D080, 0x1D800, 0x1D840, 0x1D880, 0x1D8C0, 0x1D900};
  for (char32_t first = 0xE000; first < 0xF8C0; first += 64) blocks.push_back(first);
  return blocks;
}

bool IsWordCharacter(char32_t c) {
  return c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         c == '_' || c == '-';
}

bool IsSpace(char32_t c) { return c == ' ' || (c >= 9 && c <= 13) || c == 0x85 || c == 0xA0; }

// How much a template's view of content is disturbed if this character is taken away: markup that
// templates look for ("</think>", "[TOOL]") is made of the dear ones.
int CostOf(char32_t c) {
  if (c == '|') return 1;
  if (c >= 0x80) return 1;
  if (c == '<' || c == '>' || c == '/') return 4;
  if (c == '[' || c == ']' || c == '{' || c == '}') return 3;
  if (IsWordCharacter(c)) return c == '_' ? 3 : 6;
  if (IsSpace(c)) return 8;
  return 2;
}

uint64_t Edge(uint32_t node, char32_t c) { return static_cast<uint64_t>(node) << 32 | c; }

std::pair<size_t, size_t> Trimmed(const std::u32string& text) {
  size_t begin = 0;
  size_t end = text.size();
  while (begin < end && IsSpace(text[begin])) ++begin;
  while (end > begin && IsSpace(text[end - 1])) --end;
  return {begin, end};
}

}  // namespace

std::u32string ToUtf32(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const tokenizer::Utf8Step step = tokenizer::NextUtf8(text);
    out.push_back(step.kind == tokenizer::Utf8Step::Kind::kChar ? step.code : U'\uFFFD');
    text.remove_prefix(step.length);
  }
  return out;
}

std::string ToUtf8(std::u32string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char32_t c : text) tokenizer::AppendUtf8(out, c);
  return out;
}

PromptGuard::PromptGuard(const std::vector<std::string>& special_texts) {
  for (const std::string& text : special_texts) {
    if (text.empty()) continue;
    specials_.push_back(ToUtf32(text));
    uint32_t node = 0;
    for (const char32_t c : specials_.back()) {
      const auto [edge, added] = edges_.try_emplace(Edge(node, c), special_of_node_.size());
      if (added) special_of_node_.push_back(-1);
      node = edge->second;
    }
    special_of_node_[node] = static_cast<int>(specials_.size()) - 1;
  }
  ChooseHitCharacters();
}

void PromptGuard::ChooseHitCharacters() {
  // Greedy set cover: the most special strings for the least disturbance.
  std::vector<const std::u32string*> open;
  for (const std::u32string& special : specials_) open.push_back(&special);
  while (!open.empty()) {
    std::map<char32_t, int> count;
    for (const std::u32string* special : open) {
      for (const char32_t c : std::set<char32_t>(special->begin(), special->end())) ++count[c];
    }
    const auto best =
        std::max_element(count.begin(), count.end(), [](const auto& a, const auto& b) {
          return a.second * CostOf(b.first) < b.second * CostOf(a.first);
        });
    hits_.insert(best->first);
    std::erase_if(open, [&](const std::u32string* special) {
      return special->find(best->first) != std::u32string::npos;
    });
  }
}

std::optional<PromptGuard::StandIns> PromptGuard::ChooseStandIns(
    const std::vector<std::string_view>& texts) {
  std::set<char32_t> taken;  // by block
  for (std::string_view text : texts) {
    while (!text.empty()) {
      const tokenizer::Utf8Step step = tokenizer::NextUtf8(text);
      if (step.code >= 0x2800) taken.insert(step.code / StandIns::kSize);
      text.remove_prefix(step.length);
    }
  }
  for (const char32_t first : Blocks()) {
    if (!taken.contains(first / StandIns::kSize)) return StandIns(first);
  }
  return std::nullopt;
}

std::vector<PromptGuard::Occurrence> PromptGuard::FindAll(const std::u32string& text) const {
  std::vector<Occurrence> found;
  for (size_t begin = 0; begin < text.size(); ++begin) {
    uint32_t node = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      const auto edge = edges_.find(Edge(node, text[i]));
      if (edge == edges_.end()) break;
      node = edge->second;
      if (special_of_node_[node] >= 0) found.push_back({begin, i + 1, special_of_node_[node]});
    }
  }
  return found;
}

void PromptGuard::MarkFragments(const std::u32string& text, std::vector<bool>& mark) const {
  const auto set = [&](size_t begin, size_t end) {
    std::fill(mark.begin() + begin, mark.begin() + end, true);
  };
  const auto [trim_begin, trim_end] = Trimmed(text);
  for (const auto& [begin, end] :
       {std::pair<size_t, size_t>{0, text.size()}, std::pair{trim_begin, trim_end}}) {
    const std::u32string_view body = std::u32string_view(text).substr(begin, end - begin);
    for (const std::u32string& special : specials_) {
      for (size_t n = std::min(special.size() - 1, body.size()); n > 0; --n) {
        if (body.ends_with(std::u32string_view(special).substr(0, n))) set(end - n, end);
        if (body.starts_with(std::u32string_view(special).substr(special.size() - n))) {
          set(begin, begin + n);
        }
      }
    }
  }
}

std::u32string PromptGuard::MaskString(const std::u32string& text, Level level, bool is_key,
                                       const StandIns& stand_ins) const {
  std::vector<bool> mark(text.size(), false);
  for (const Occurrence& found : FindAll(text)) {
    std::fill(mark.begin() + found.begin, mark.begin() + found.end, true);
  }
  if (level == Level::kCharacters) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (hits_.contains(text[i])) mark[i] = true;
    }
  } else if (!is_key) {
    MarkFragments(text, mark);
  }
  if (!is_key) {
    // A template may wrap it into the whole: '<' + name + '>'.
    const auto [begin, end] = Trimmed(text);
    const std::u32string body = text.substr(begin, end - begin);
    if (std::any_of(specials_.begin(), specials_.end(), [&](const std::u32string& special) {
          return !body.empty() && special.find(body) != std::u32string::npos;
        })) {
      std::fill(mark.begin() + begin, mark.begin() + end, true);
    }
  }
  std::u32string masked = text;
  for (size_t i = 0; i < text.size(); ++i) {
    if (mark[i]) masked[i] = stand_ins.For(text[i]);
  }
  return masked;
}

Json PromptGuard::MaskValue(const Json& value, Level level, const StandIns& stand_ins,
                            bool in_message) const {
  const auto mask = [&](const std::string& text, bool is_key) {
    return ToUtf8(MaskString(ToUtf32(text), level, is_key, stand_ins));
  };
  if (value.is_string()) return mask(value.get_ref<const std::string&>(), /*is_key=*/false);
  if (value.is_array()) {
    Json out = Json::array();
    for (const Json& item : value) out.push_back(MaskValue(item, level, stand_ins, in_message));
    return out;
  }
  if (!value.is_object()) return value;
  Json out = Json::object();
  for (const auto& [key, item] : value.items()) {
    const bool usual_role = in_message && key == "role" && item.is_string() &&
                            std::find(kUsualRoles.begin(), kUsualRoles.end(),
                                      item.get_ref<const std::string&>()) != kUsualRoles.end();
    out[mask(key, /*is_key=*/true)] =
        usual_role ? item : MaskValue(item, level, stand_ins, /*in_message=*/false);
  }
  return out;
}

Json PromptGuard::Mask(const Json& variables, Level level, const StandIns& stand_ins) const {
  Json out = Json::object();
  for (const auto& [key, value] : variables.items()) {
    out[key] = MaskValue(value, level, stand_ins, /*in_message=*/key == "messages");
  }
  return out;
}

}  // namespace smartgen::chat
