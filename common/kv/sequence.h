// One request's KV: a page table over the pool. The only way to KV bytes for executor and transfer.
//
// Held by std::shared_ptr: whoever moves bytes (a posted send, a receive under way) holds one, so
// that no page is freed under it. The page table changes only in Reserve, which one thread calls
// (the owner: the daemon's engine) and never while others use pages beyond those they were told of;
// reads of the table by other threads are safe after that. Everything else is thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/kv/pool.h"

namespace smartgen::kv {

class KvSequence {
 public:
  // `prefix_pages` come with a reference each, which this takes over (PrefixCache::Lookup); they
  // are read-only for this sequence. The pool must outlive it.
  explicit KvSequence(KvPool* pool, std::vector<PageId> prefix_pages = {});
  ~KvSequence();
  KvSequence(const KvSequence&) = delete;
  KvSequence& operator=(const KvSequence&) = delete;

  // Makes room for `tokens` in total. ResourceExhausted changes nothing. At most max_tokens
  // (Reserve never reallocates the table: it is sized for layout().token_capacity at construction).
  absl::Status Reserve(int64_t tokens);
  int64_t capacity() const { return num_pages_.load(std::memory_order_acquire) * kPageTokens; }
  int64_t prefix_tokens() const { return prefix_tokens_; }

  const KvLayout& layout() const { return pool_->layout(); }
  KvPool* pool() const { return pool_; }
  std::span<const PageId> pages() const {
    return {pages_.data(), static_cast<size_t>(num_pages_.load(std::memory_order_acquire))};
  }
  // The page of a layer that holds tokens [16 * index, 16 * index + 16).
  std::byte* Page(int layer, int64_t index) { return pool_->Data(layer, pages_[index]); }

  // Residency of tokens [begin, end) of a layer. MarkLocal: the bytes are final (release).
  void MarkLocal(int layer, int64_t begin, int64_t end);
  void MarkRemote(int layer, int64_t begin, int64_t end);
  // K and V of one head of these tokens are final (release). A token becomes local with its last
  // head.
  void MarkHeadLocal(int layer, int head, int64_t begin, int64_t end);
  bool HeadLocal(int layer, int head, int64_t token) const {
    return pool_->residency().HeadLocal(pages_[token / kPageTokens], layer, head,
                                        static_cast<int>(token % kPageTokens));
  }
  bool AllLocal(int layer, int64_t begin, int64_t end) const;
  // First token of [begin, end) that is not local; end if all are.
  int64_t FirstNotLocal(int layer, int64_t begin, int64_t end) const;

  // The contiguous byte ranges of tokens [begin, end) of a layer, in the order that defines the
  // wire format: for each page in ascending order, K of head 0..H-1, then V of head 0..H-1;
  // adjacent ranges merged (a whole page is one segment).
  std::vector<std::span<std::byte>> Segments(int layer, int64_t begin, int64_t end);
  // The same of one KV head: for each page in ascending order its K rows of these tokens, then its
  // V rows; adjacent ranges merged.
  std::vector<std::span<std::byte>> Segments(int layer, int head, int64_t begin, int64_t end);

 private:
  KvPool* pool_;
  std::vector<PageId>
      pages_;  // sized for the capacity at construction; the first num_pages_ are set
  std::atomic<int64_t> num_pages_{0};
  int64_t prefix_tokens_;
};

}  // namespace smartgen::kv
