#include "common/tokenizer/bpe.h"

#include <algorithm>

namespace smartgen::tokenizer {
namespace {

constexpr uint32_t kNoMerge = UINT32_MAX;
// Up to here looking through an array beats a heap.
constexpr size_t kShortWord = 48;

}  // namespace

Bpe::Bpe(const Options& options)
    : byte_tokens_(options.byte_tokens),
      unknown_(options.unknown),
      fuse_unknown_(options.fuse_unknown) {
  merges_.reserve(options.merges.size());
  uint32_t rank = 0;
  for (const Merge& merge : options.merges) {
    merges_.try_emplace(Key(merge.left, merge.right), Target{rank++, merge.result});
  }
}

const Bpe::Target* Bpe::Find(TokenId left, TokenId right) const {
  const auto it = merges_.find(Key(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

uint32_t Bpe::RankOf(TokenId left, TokenId right) const {
  const Target* target = Find(left, right);
  return target == nullptr ? kNoMerge : target->rank;
}

void Bpe::Start(std::string_view word, std::vector<TokenId>& ids) const {
  ids.clear();
  for (const char c : word) {
    const TokenId id = byte_tokens_[static_cast<uint8_t>(c)];
    if (id != kNone) {
      ids.push_back(id);
    } else if (unknown_ != kNone && !(fuse_unknown_ && !ids.empty() && ids.back() == unknown_)) {
      ids.push_back(unknown_);
    }
  }
}

void Bpe::MergeShort(Scratch& scratch) const {
  std::vector<TokenId>& ids = scratch.ids;
  std::vector<uint32_t>& ranks = scratch.ranks;  // of the pair (i, i + 1)
  ranks.clear();
  for (size_t i = 0; i + 1 < ids.size(); ++i) ranks.push_back(RankOf(ids[i], ids[i + 1]));
  while (!ranks.empty()) {
    const size_t at = std::min_element(ranks.begin(), ranks.end()) - ranks.begin();
    if (ranks[at] == kNoMerge) return;
    ids[at] = Find(ids[at], ids[at + 1])->result;
    ids.erase(ids.begin() + at + 1);
    ranks.erase(ranks.begin() + at);
    if (at < ranks.size()) ranks[at] = RankOf(ids[at], ids[at + 1]);
    if (at > 0) ranks[at - 1] = RankOf(ids[at - 1], ids[at]);
  }
}

void Bpe::MergeLong(Scratch& scratch) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  std::vector<Candidate>& heap = scratch.heap;
  const auto count = static_cast<int32_t>(scratch.ids.size());
  symbols.clear();
  heap.clear();
  for (int32_t i = 0; i < count; ++i) {
    symbols.push_back({scratch.ids[i], i - 1, i + 1 < count ? i + 1 : -1});
  }
  // The strongest merge first, of equals the leftmost.
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.pos > b.pos;
  };
  const auto offer = [&](int32_t pos) {
    if (pos < 0 || symbols[pos].next < 0) return;
    const TokenId left = symbols[pos].id;
    const TokenId right = symbols[symbols[pos].next].id;
    const uint32_t rank = RankOf(left, right);
    if (rank == kNoMerge) return;
    heap.push_back({rank, pos, left, right});
    std::push_heap(heap.begin(), heap.end(), later);
  };
  for (int32_t i = 0; i < count; ++i) offer(i);
  while (!heap.empty()) {
    const Candidate best = heap.front();
    std::pop_heap(heap.begin(), heap.end(), later);
    heap.pop_back();
    Symbol& left = symbols[best.pos];
    // Stale: one of the two has been merged away since.
    if (left.id != best.left || left.next < 0 || symbols[left.next].id != best.right) continue;
    Symbol& right = symbols[left.next];
    left.id = Find(best.left, best.right)->result;
    right.id = kNone;
    left.next = right.next;
    if (right.next >= 0) symbols[right.next].prev = best.pos;
    offer(left.prev);
    offer(best.pos);
  }
  scratch.ids.clear();
  for (int32_t i = 0; i >= 0; i = symbols[i].next) scratch.ids.push_back(symbols[i].id);
}

void Bpe::MergeWord(std::string_view word, Scratch& scratch) const {
  Start(word, scratch.ids);
  if (scratch.ids.size() < 2) return;
  scratch.ids.size() <= kShortWord ? MergeShort(scratch) : MergeLong(scratch);
}

bool Bpe::MergesTo(std::string_view word, TokenId id, Scratch& scratch) const {
  MergeWord(word, scratch);
  return scratch.ids.size() == 1 && scratch.ids[0] == id;
}

void Bpe::Encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const {
  const auto it = words_.find(word);
  if (it != words_.end()) {
    out.push_back(it->second);
    return;
  }
  MergeWord(word, scratch);
  out.insert(out.end(), scratch.ids.begin(), scratch.ids.end());
}

}  // namespace smartgen::tokenizer
