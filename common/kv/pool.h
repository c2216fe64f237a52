// Host memory for KV, cut into pages. A page id names one page in *every* layer (16 tokens of all
// layers); bytes lie apart per layer.
//
// Thread-safe. Bytes of a page may be written by whoever holds a reference and owns the token range
// (the executor for tokens that it computes, the transfer receiver for tokens on their way); who
// reads first asks the residency mask.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/base/mutex.h"
#include "common/kv/layout.h"

namespace smartgen::kv {

using PageId = int32_t;
static_assert(kPageTokens == 16, "a head's tokens of a page are the bits of a uint16_t");

// What is here. int8 per (layer, token) of a physical page, so that sequences that share a page
// share one transfer. Allowed transitions: 0->1, 0->2, 2->1, anything->0 only when a page is handed
// out anew. Beside it one bit per (layer, token, KV head) remembers entries that came one by one.
enum class Residency : int8_t { kNothing = 0, kLocal = 1, kRemote = 2 };

class ResidencyMask {
 public:
  // KV heads of each layer.
  ResidencyMask(int64_t pages, std::span<const LayerLayout> layers);

  // A reader that gets kLocal may read that token's final bytes, of all KV heads (acquire).
  Residency Get(PageId page, int layer, int token) const {
    return static_cast<Residency>(
        cells_[Index(page, layer, token)].load(std::memory_order_acquire));
  }
  // Release: the caller has written the bytes. Tokens [begin, end) of the page.
  void MarkLocal(PageId page, int layer, int begin, int end);
  // Release: the caller has written K and V of one head of tokens [begin, end) of the page. A token
  // whose last head this was becomes kLocal.
  void MarkHeadLocal(PageId page, int layer, int head, int begin, int end);
  // A reader that gets true may read the final bytes of that head (acquire). True where kLocal.
  bool HeadLocal(PageId page, int layer, int head, int token) const {
    if (Get(page, layer, token) == Residency::kLocal) return true;
    const uint16_t bits = heads_[HeadIndex(page, layer, head)].load(std::memory_order_acquire);
    return ((bits >> token) & 1) != 0;
  }
  // Leaves tokens alone that are local already.
  void MarkRemote(PageId page, int layer, int begin, int end);
  bool AllLocal(PageId page, int layer, int begin, int end) const;
  // When a page is handed out anew.
  void Reset(PageId page);

 private:
  int64_t Index(PageId page, int layer, int token) const {
    return (static_cast<int64_t>(page) * layers_ + layer) * kPageTokens + token;
  }
  int64_t HeadIndex(PageId page, int layer, int head) const {
    return page * heads_a_page_ + first_head_[layer] + head;
  }
  int layers_;
  std::vector<int64_t> first_head_;  // of each layer among a page's heads, and the end of the last
  int64_t heads_a_page_;
  std::vector<std::atomic<int8_t>> cells_;
  std::vector<std::atomic<uint16_t>> heads_;  // bit t: token t of the page
};

// Where a pool's pages lie, if not in memory of its own: what an accelerator reads and writes
// without a copy between. Thread-safe.
class PageMemory {
 public:
  virtual ~PageMemory() = default;
  // ResourceExhausted says how much was asked for.
  virtual absl::StatusOr<std::span<std::byte>> Allocate(size_t bytes) = 0;
  virtual void Free(std::span<std::byte> bytes) = 0;
};

class KvPool {
 public:
  struct Options {
    int64_t bytes = 0;  // at most this much for pages; at least one page must fit
    std::shared_ptr<PageMemory> memory = nullptr;  // null: the process's own
  };
  // Frees up to `pages` pages and returns how many it freed; 0 when there is nothing left to free.
  using Evictor = std::function<int64_t(int64_t pages)>;

  // ResourceExhausted if the memory cannot be mapped, InvalidArgument if not one page fits. Memory
  // is touched when first used.
  static absl::StatusOr<std::unique_ptr<KvPool>> Create(KvLayout layout, Options options);
  ~KvPool();
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;

  const KvLayout& layout() const { return layout_; }
  ResidencyMask& residency() { return residency_; }
  int64_t total_pages() const { return total_pages_; }
  int64_t free_pages() const;
  static int64_t PagesFor(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

  // All or nothing; each page comes with one reference, residency kNothing, in ascending order (so
  // that neighbours often make one segment on the wire). When short, asks the evictor first.
  // ResourceExhausted says how many were wanted and free.
  absl::StatusOr<std::vector<PageId>> Allocate(int64_t count);
  void AddRef(PageId page);
  // The last reference frees the page. Releasing (or referring to) a page that nobody holds is a
  // bug of the caller: it aborts in debug builds; otherwise it is logged, counted in misuses() and
  // changes nothing, so that a page never gets two owners. A release too many while others still
  // hold the page cannot be told from a right one.
  void Release(PageId page);
  void Release(std::span<const PageId> pages);
  int ref_count(PageId page) const;
  int64_t misuses() const { return misuses_.load(std::memory_order_relaxed); }

  // Another number each time that a page is handed out, in the whole process: who keeps a copy of a
  // page sees by it that the page is another one now.
  uint64_t stamp(PageId page) const { return stamps_[page].load(std::memory_order_relaxed); }
  // Null: the process's own.
  const PageMemory* memory() const { return memory_.get(); }

  std::byte* Data(int layer, PageId page) {
    return layer_base_[layer] + static_cast<int64_t>(page) * layout_.PageBytes(layer);
  }

  // Called without the pool's lock, one call at a time, when Allocate is short by `pages` (prefix
  // cache). It must not call Allocate. SetEvictor returns when no call of the old one is under way;
  // nullptr removes it.
  void SetEvictor(Evictor evictor);

 private:
  KvPool(KvLayout layout, int64_t pages, std::shared_ptr<PageMemory> memory);
  absl::Status Map();
  // Takes `count` pages off the free list into `out`, or returns how many are missing.
  int64_t TryTake(int64_t count, std::vector<PageId>& out);
  void ReleaseLocked(PageId page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Misuse(const char* what, PageId page);
  bool Held(PageId page) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return page >= 0 && page < total_pages_ && refs_[page] > 0;
  }

  const KvLayout layout_;
  const int64_t total_pages_;
  const std::shared_ptr<PageMemory> memory_;
  std::vector<std::byte*> layer_base_;
  std::vector<std::atomic<uint64_t>> stamps_;
  ResidencyMask residency_;
  std::atomic<int64_t> misuses_{0};
  base::Mutex evictor_mutex_;  // taken before mutex_
  Evictor evictor_ ABSL_GUARDED_BY(evictor_mutex_);
  mutable base::Mutex mutex_;
  std::vector<PageId> free_ ABSL_GUARDED_BY(mutex_);  // a stack: warm pages are used again first
  std::vector<int> refs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace smartgen::kv
