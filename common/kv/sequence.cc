#include "common/kv/sequence.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace smartgen::kv {
namespace {

// Calls visit(page index, first token in the page, end token in the page) for the pages of
// [begin, end), in ascending order, until it returns false.
template <typename Visit>
void ForEachPage(int64_t begin, int64_t end, Visit visit) {
  while (begin < end) {
    const int64_t index = begin / kPageTokens;
    const int64_t page_begin = index * kPageTokens;
    const int64_t stop = std::min(end, page_begin + kPageTokens);
    if (!visit(index, static_cast<int>(begin - page_begin), static_cast<int>(stop - page_begin))) {
      return;
    }
    begin = stop;
  }
}

void Append(std::vector<std::span<std::byte>>& segments, std::byte* data, int64_t bytes) {
  if (!segments.empty() && segments.back().data() + segments.back().size() == data) {
    segments.back() = {segments.back().data(), segments.back().size() + static_cast<size_t>(bytes)};
  } else {
    segments.emplace_back(data, static_cast<size_t>(bytes));
  }
}

}  // namespace

KvSequence::KvSequence(KvPool* pool, std::vector<PageId> prefix_pages)
    : pool_(pool),
      pages_(std::move(prefix_pages)),
      num_pages_(static_cast<int64_t>(pages_.size())),
      prefix_tokens_(static_cast<int64_t>(pages_.size()) * kPageTokens) {
  const auto table = static_cast<size_t>(KvPool::PagesFor(pool_->layout().token_capacity));
  pages_.resize(std::max(table, pages_.size()));
}

KvSequence::~KvSequence() { pool_->Release(pages()); }

absl::Status KvSequence::Reserve(int64_t tokens) {
  if (tokens < 0 || tokens > layout().token_capacity) {
    return base::InvalidArgument("KV sequence: want room for 0 to {} tokens, got {}",
                                 layout().token_capacity, tokens);
  }
  const int64_t have = num_pages_.load(std::memory_order_relaxed);
  const int64_t lacking = KvPool::PagesFor(tokens) - have;
  if (lacking <= 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<PageId> fresh, pool_->Allocate(lacking));
  std::copy(fresh.begin(), fresh.end(), pages_.begin() + have);
  num_pages_.store(have + lacking, std::memory_order_release);
  return absl::OkStatus();
}

void KvSequence::MarkLocal(int layer, int64_t begin, int64_t end) {
  assert(begin >= 0 && end <= capacity());
  ForEachPage(begin, end, [&](int64_t index, int from, int to) {
    pool_->residency().MarkLocal(pages_[index], layer, from, to);
    return true;
  });
}

void KvSequence::MarkRemote(int layer, int64_t begin, int64_t end) {
  assert(begin >= 0 && end <= capacity());
  ForEachPage(begin, end, [&](int64_t index, int from, int to) {
    pool_->residency().MarkRemote(pages_[index], layer, from, to);
    return true;
  });
}

void KvSequence::MarkHeadLocal(int layer, int head, int64_t begin, int64_t end) {
  assert(begin >= 0 && end <= capacity());
  assert(head >= 0 && head < layout().layers[layer].kv_heads);
  ForEachPage(begin, end, [&](int64_t index, int from, int to) {
    pool_->residency().MarkHeadLocal(pages_[index], layer, head, from, to);
    return true;
  });
}

bool KvSequence::AllLocal(int layer, int64_t begin, int64_t end) const {
  return FirstNotLocal(layer, begin, end) == end;
}

int64_t KvSequence::FirstNotLocal(int layer, int64_t begin, int64_t end) const {
  assert(begin >= 0 && end <= capacity());
  const ResidencyMask& mask = pool_->residency();
  int64_t found = end;
  ForEachPage(begin, end, [&](int64_t index, int from, int to) {
    for (int token = from; token < to; ++token) {
      if (mask.Get(pages_[index], layer, token) == Residency::kLocal) continue;
      found = index * kPageTokens + token;
      return false;
    }
    return true;
  });
  return found;
}

std::vector<std::span<std::byte>> KvSequence::Segments(int layer, int64_t begin, int64_t end) {
  assert(begin >= 0 && end <= capacity());
  const KvLayout& kv = layout();
  std::vector<std::span<std::byte>> segments;
  ForEachPage(begin, end, [&](int64_t index, int from, int to) {
    std::byte* page = Page(layer, index);
    if (to - from == kPageTokens) {
      Append(segments, page, kv.PageBytes(layer));
      return true;
    }
    const int64_t bytes = (to - from) * kv.RowBytes(layer);
    const int heads = kv.layers[layer].kv_heads;
    for (int h = 0; h < heads; ++h) Append(segments, page + kv.KOffset(layer, h, from), bytes);
    for (int h = 0; h < heads; ++h) Append(segments, page + kv.VOffset(layer, h, from), bytes);
    return true;
  });
  return segments;
}

std::vector<std::span<std::byte>> KvSequence::Segments(int layer, int head, int64_t begin,
                                                       int64_t end) {
  assert(begin >= 0 && end <= capacity());
  assert(head >= 0 && head < layout().layers[layer].kv_heads);
  const KvLayout& kv = layout();
  std::vector<std::span<std::byte>> segments;
  ForEachPage(begin, end, [&](int64_t index, int from, int to) {
    std::byte* page = Page(layer, index);
    const int64_t bytes = (to - from) * kv.RowBytes(layer);
    Append(segments, page + kv.KOffset(layer, head, from), bytes);
    Append(segments, page + kv.VOffset(layer, head, from), bytes);
    return true;
  });
  return segments;
}

}  // namespace smartgen::kv
