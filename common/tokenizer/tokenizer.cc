#include "common/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "common/tokenizer/bpe.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/special_matcher.h"
#include "common/tokenizer/utf8.h"
#include "common/tokenizer/vocabulary.h"

namespace smartgen::tokenizer {
namespace {

// Longer tokens are rare (runs of spaces) and are found by merging.
constexpr size_t kMaxWholeWord = 64;

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(Vocabulary vocabulary);

  int vocab_size() const override { return static_cast<int>(kinds_.size()); }
  std::vector<TokenId> Encode(std::string_view text, bool parse_special) const override {
    const TextPiece piece{text, parse_special};
    return EncodePieces({&piece, 1});
  }
  std::vector<TokenId> EncodePieces(std::span<const TextPiece> pieces) const override;
  std::string_view TokenBytes(TokenId id, bool special) const override;
  bool IsControl(TokenId id) const override {
    return Known(id) && kinds_[id] == Vocabulary::Kind::kControl;
  }
  std::optional<TokenId> bos_id() const override { return bos_id_; }
  bool add_bos() const override { return add_bos_; }
  std::span<const TokenId> eos_ids() const override { return eos_ids_; }
  std::optional<TokenId> FindSpecial(std::string_view text) const override;
  std::span<const std::string> special_texts() const override { return special_texts_; }

 private:
  // Where special tokens may be found: [begin, end) of the text.
  struct Range {
    size_t begin, end;
  };
  struct Work {
    explicit Work(const BpeTokenizer& owner) : words(*owner.pre_tokenizer_) {}
    PreTokenizer::Scratch words;
    Bpe::Scratch bpe;
    std::string normalized;
  };

  bool Known(TokenId id) const { return id >= 0 && static_cast<size_t>(id) < kinds_.size(); }
  void StoreTokens(const std::vector<Vocabulary::Token>& tokens);
  void BuildBpe(const Vocabulary& vocabulary);
  SpecialMatcher::Match NextSpecial(std::string_view text, size_t from,
                                    std::span<const Range> ranges) const;
  void EncodeText(std::string_view text, std::span<const Range> ranges,
                  std::vector<TokenId>& out) const;
  void EncodePlain(std::string_view text, Work& work, std::vector<TokenId>& out) const;

  std::string arena_;            // all tokens' bytes
  std::vector<size_t> offsets_;  // vocab_size + 1
  std::vector<Vocabulary::Kind> kinds_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  std::vector<Normalization> normalizations_;
  std::unique_ptr<Bpe> bpe_;
  SpecialMatcher specials_;
  std::vector<std::string> special_texts_;
  std::optional<TokenId> bos_id_;
  std::vector<TokenId> eos_ids_;
  bool add_bos_;
};

BpeTokenizer::BpeTokenizer(Vocabulary vocabulary)
    : pre_tokenizer_(std::move(vocabulary.pre_tokenizer)),
      normalizations_(std::move(vocabulary.normalizations)),
      bos_id_(vocabulary.bos_id),
      eos_ids_(std::move(vocabulary.eos_ids)),
      add_bos_(vocabulary.add_bos) {
  StoreTokens(vocabulary.tokens);
  BuildBpe(vocabulary);
}

void BpeTokenizer::StoreTokens(const std::vector<Vocabulary::Token>& tokens) {
  using Kind = Vocabulary::Kind;
  size_t total = 0;
  for (const Vocabulary::Token& token : tokens) total += token.bytes.size();
  arena_.reserve(total);
  offsets_.push_back(0);
  for (size_t id = 0; id < tokens.size(); ++id) {
    const Vocabulary::Token& token = tokens[id];
    arena_.append(token.bytes);
    offsets_.push_back(arena_.size());
    kinds_.push_back(token.kind);
    if (token.kind != Kind::kControl && token.kind != Kind::kUserDefined) continue;
    const bool guarded = token.kind == Kind::kControl || token.guarded;
    specials_.Add(token.text, {static_cast<TokenId>(id), guarded, token.lstrip, token.rstrip});
    if (guarded && !token.text.empty()) special_texts_.push_back(token.text);
  }
  std::stable_sort(special_texts_.begin(), special_texts_.end(),
                   [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
}

void BpeTokenizer::BuildBpe(const Vocabulary& vocabulary) {
  Bpe::Options options;
  options.byte_tokens.fill(Bpe::kNone);
  options.merges = vocabulary.merges;
  options.unknown = vocabulary.unknown;
  options.fuse_unknown = vocabulary.fuse_unknown;
  const auto normal = [&](size_t id) { return kinds_[id] == Vocabulary::Kind::kNormal; };
  for (size_t id = 0; id < kinds_.size(); ++id) {
    const std::string_view bytes = TokenBytes(static_cast<TokenId>(id), true);
    if (!normal(id) || bytes.size() != 1) continue;
    TokenId& slot = options.byte_tokens[static_cast<uint8_t>(bytes[0])];
    if (slot == Bpe::kNone) slot = static_cast<TokenId>(id);
  }
  bpe_ = std::make_unique<Bpe>(options);
  Bpe::Scratch scratch;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const std::string_view bytes = TokenBytes(id, true);
    if (!normal(i) || bytes.empty()) continue;
    if (vocabulary.ignore_merges ||
        (bytes.size() <= kMaxWholeWord && bpe_->MergesTo(bytes, id, scratch))) {
      bpe_->AddWholeWord(bytes, id);
    }
  }
}

std::string_view BpeTokenizer::TokenBytes(TokenId id, bool special) const {
  if (!Known(id) || (!special && IsControl(id))) return {};
  return std::string_view(arena_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
}

std::optional<TokenId> BpeTokenizer::FindSpecial(std::string_view text) const {
  const auto match = specials_.LongestAt(
      text, 0, [&](const SpecialMatcher::Entry&, size_t end) { return end == text.size(); });
  if (match.entry == nullptr) return std::nullopt;
  return match.entry->id;
}

SpecialMatcher::Match BpeTokenizer::NextSpecial(std::string_view text, size_t from,
                                                std::span<const Range> ranges) const {
  auto range = ranges.begin();
  for (size_t pos = from; pos < text.size(); ++pos) {
    if (!specials_.CanStartWith(text[pos])) continue;
    while (range != ranges.end() && range->end <= pos) ++range;
    const bool inside = range != ranges.end() && range->begin <= pos;
    const auto match =
        specials_.LongestAt(text, pos, [&](const SpecialMatcher::Entry& entry, size_t end) {
          return !entry.guarded || (inside && end <= range->end);
        });
    if (match.entry != nullptr) return match;
  }
  return {text.size(), text.size(), nullptr};
}

void BpeTokenizer::EncodeText(std::string_view text, std::span<const Range> ranges,
                              std::vector<TokenId>& out) const {
  Work work(*this);
  size_t pos = 0;
  while (pos < text.size()) {
    while (!ranges.empty() && ranges.front().end <= pos) ranges = ranges.subspan(1);
    const SpecialMatcher::Match match = NextSpecial(text, pos, ranges);
    size_t begin = match.begin;
    size_t end = match.end;
    if (match.entry != nullptr && match.entry->lstrip) {
      while (begin > pos && IsSpace(text[begin - 1])) --begin;
    }
    if (match.entry != nullptr && match.entry->rstrip) {
      while (end < text.size() && IsSpace(text[end])) ++end;
    }
    EncodePlain(text.substr(pos, begin - pos), work, out);
    if (match.entry != nullptr) out.push_back(match.entry->id);
    pos = end;
  }
}

void BpeTokenizer::EncodePlain(std::string_view text, Work& work, std::vector<TokenId>& out) const {
  while (!text.empty()) {
    const size_t valid = ValidUtf8Prefix(text);
    if (valid > 0) {
      const std::string_view normalized =
          Normalize(text.substr(0, valid), normalizations_, work.normalized);
      for (const std::string_view word : pre_tokenizer_->Split(normalized, work.words)) {
        bpe_->Encode(word, work.bpe, out);
      }
      text.remove_prefix(valid);
    }
    if (text.empty()) break;
    // Each byte by itself: a regex sees whole characters only.
    const size_t broken = NextUtf8(text).length;
    for (size_t i = 0; i < broken; ++i) bpe_->Encode(text.substr(i, 1), work.bpe, out);
    text.remove_prefix(broken);
  }
}

std::vector<TokenId> BpeTokenizer::EncodePieces(std::span<const TextPiece> pieces) const {
  std::vector<TokenId> out;
  std::vector<Range> ranges;
  if (pieces.size() == 1) {
    const Range whole{0, pieces[0].text.size()};
    if (pieces[0].parse_special) ranges.push_back(whole);
    EncodeText(pieces[0].text, ranges, out);
    return out;
  }
  std::string text;
  for (const TextPiece& piece : pieces) {
    if (piece.parse_special) ranges.push_back({text.size(), text.size() + piece.text.size()});
    text.append(piece.text);
  }
  EncodeText(text, ranges, out);
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(const model::TokenizerData& data) {
  if (data.tokenizer_json.empty() && data.tokens.empty()) {
    return base::InvalidArgument(
        "the model has no tokenizer: neither tokenizer.ggml.tokens nor tokenizer.json");
  }
  ASSIGN_OR_RETURN(Vocabulary vocabulary, data.tokenizer_json.empty()
                                              ? Vocabulary::FromGguf(data)
                                              : Vocabulary::FromTokenizerJson(data));
  vocabulary.GuardTokensOf(data.chat_template);
  return std::make_unique<BpeTokenizer>(std::move(vocabulary));
}

}  // namespace smartgen::tokenizer
