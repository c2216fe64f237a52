#include "common/kv/pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "common/base/log.h"

namespace smartgen::kv {

namespace {

std::vector<int64_t> FirstHeads(std::span<const LayerLayout> layers) {
  std::vector<int64_t> first = {0};
  for (const LayerLayout& layer : layers) first.push_back(first.back() + layer.kv_heads);
  return first;
}

// Whether there are addresses for so much: known at once, before the books of that many pages are
// made, which take memory.
absl::Status CheckAddresses(int64_t bytes) {
  void* base = mmap(nullptr, static_cast<size_t>(bytes), PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return base::ResourceExhausted("KV pool: cannot map {} bytes: {}", bytes, strerror(errno));
  }
  munmap(base, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

}  // namespace

ResidencyMask::ResidencyMask(int64_t pages, std::span<const LayerLayout> layers)
    : layers_(static_cast<int>(layers.size())),
      first_head_(FirstHeads(layers)),
      heads_a_page_(first_head_.back()),
      cells_(static_cast<size_t>(pages) * layers.size() * kPageTokens),
      heads_(static_cast<size_t>(pages * heads_a_page_)) {}

void ResidencyMask::MarkLocal(PageId page, int layer, int begin, int end) {
  std::atomic<int8_t>* cells = &cells_[Index(page, layer, 0)];
  for (int token = begin; token < end; ++token) {
    cells[token].store(static_cast<int8_t>(Residency::kLocal), std::memory_order_release);
  }
}

void ResidencyMask::MarkHeadLocal(PageId page, int layer, int head, int begin, int end) {
  if (begin >= end) return;
  const int64_t first = HeadIndex(page, layer, 0);
  const int64_t last = first + first_head_[layer + 1] - first_head_[layer];
  const auto fresh = static_cast<uint16_t>(((1U << end) - 1U) & ~((1U << begin) - 1U));
  // Sequentially consistent: of two threads that bring the last two heads of a token at the same
  // time at least one sees both.
  heads_[first + head].fetch_or(fresh, std::memory_order_seq_cst);
  uint16_t whole = fresh;
  for (int64_t at = first; at < last && whole != 0; ++at) {
    whole = static_cast<uint16_t>(whole & heads_[at].load(std::memory_order_seq_cst));
  }
  for (int token = begin; token < end; ++token) {
    if (((whole >> token) & 1) != 0) MarkLocal(page, layer, token, token + 1);
  }
}

void ResidencyMask::MarkRemote(PageId page, int layer, int begin, int end) {
  std::atomic<int8_t>* cells = &cells_[Index(page, layer, 0)];
  for (int token = begin; token < end; ++token) {
    // Only from kNothing: a receiver may make the token local at this very moment.
    auto expected = static_cast<int8_t>(Residency::kNothing);
    cells[token].compare_exchange_strong(expected, static_cast<int8_t>(Residency::kRemote),
                                         std::memory_order_relaxed);
  }
}

bool ResidencyMask::AllLocal(PageId page, int layer, int begin, int end) const {
  for (int token = begin; token < end; ++token) {
    if (Get(page, layer, token) != Residency::kLocal) return false;
  }
  return true;
}

void ResidencyMask::Reset(PageId page) {
  std::atomic<int8_t>* cells = &cells_[Index(page, 0, 0)];
  for (int i = 0; i < layers_ * kPageTokens; ++i) {
    cells[i].store(static_cast<int8_t>(Residency::kNothing), std::memory_order_relaxed);
  }
  std::atomic<uint16_t>* heads = &heads_[HeadIndex(page, 0, 0)];
  for (int64_t i = 0; i < heads_a_page_; ++i) heads[i].store(0, std::memory_order_relaxed);
}

absl::StatusOr<std::unique_ptr<KvPool>> KvPool::Create(KvLayout layout, Options options) {
  RETURN_IF_ERROR(layout.Check());
  const int64_t page_bytes = layout.PageBytesTotal();
  if (options.bytes < page_bytes) {
    return base::InvalidArgument(
        "KV pool: want at least {} bytes (one page of {} tokens in {} layers), got {}", page_bytes,
        kPageTokens, layout.num_layers(), options.bytes);
  }
  const int64_t pages = options.bytes / page_bytes;
  if (pages > std::numeric_limits<PageId>::max()) {
    return base::InvalidArgument("KV pool: {} bytes are {} pages; want at most {}", options.bytes,
                                 pages, std::numeric_limits<PageId>::max());
  }
  RETURN_IF_ERROR(CheckAddresses(pages * page_bytes));
  try {
    auto pool =
        std::unique_ptr<KvPool>(new KvPool(std::move(layout), pages, std::move(options.memory)));
    RETURN_IF_ERROR(pool->Map());
    return pool;
  } catch (const std::bad_alloc&) {
    return base::ResourceExhausted("KV pool: no memory for the books of {} pages", pages);
  }
}

KvPool::KvPool(KvLayout layout, int64_t pages, std::shared_ptr<PageMemory> memory)
    : layout_(std::move(layout)),
      total_pages_(pages),
      memory_(std::move(memory)),
      stamps_(static_cast<size_t>(pages)),
      residency_(pages, layout_.layers),
      refs_(static_cast<size_t>(pages), 0) {
  free_.reserve(static_cast<size_t>(pages));
  for (int64_t page = pages - 1; page >= 0; --page) free_.push_back(static_cast<PageId>(page));
}

absl::Status KvPool::Map() {
  layer_base_.reserve(layout_.layers.size());
  for (int layer = 0; layer < layout_.num_layers(); ++layer) {
    const int64_t bytes = total_pages_ * layout_.PageBytes(layer);
    if (memory_ != nullptr) {
      auto given = memory_->Allocate(static_cast<size_t>(bytes));
      RETURN_IF_ERROR(base::Annotate(
          given.status(), fmt::format("KV pool: layer {} of {}", layer, layout_.num_layers())));
      layer_base_.push_back(given->data());
      continue;
    }
    void* base = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
      return base::ResourceExhausted("KV pool: cannot map {} bytes for layer {} of {}: {}", bytes,
                                     layer, layout_.num_layers(), strerror(errno));
    }
    // Users' text is no business of a core dump; failing to say so is harmless.
    (void)madvise(base, static_cast<size_t>(bytes), MADV_DONTDUMP);
    layer_base_.push_back(static_cast<std::byte*>(base));
  }
  return absl::OkStatus();
}

KvPool::~KvPool() {
  for (size_t layer = 0; layer < layer_base_.size(); ++layer) {
    const auto bytes =
        static_cast<size_t>(total_pages_ * layout_.PageBytes(static_cast<int>(layer)));
    if (memory_ != nullptr) {
      memory_->Free({layer_base_[layer], bytes});
    } else {
      munmap(layer_base_[layer], bytes);
    }
  }
}

int64_t KvPool::free_pages() const {
  base::MutexLock lock(mutex_);
  return static_cast<int64_t>(free_.size());
}

int64_t KvPool::TryTake(int64_t count, std::vector<PageId>& out) {
  base::MutexLock lock(mutex_);
  const auto free = static_cast<int64_t>(free_.size());
  if (free < count) return count - free;
  out.assign(free_.end() - count, free_.end());
  free_.resize(static_cast<size_t>(free - count));
  static std::atomic<uint64_t> last_stamp{0};
  for (const PageId page : out) {
    refs_[page] = 1;
    stamps_[page].store(++last_stamp, std::memory_order_relaxed);
  }
  return 0;
}

absl::StatusOr<std::vector<PageId>> KvPool::Allocate(int64_t count) {
  if (count < 0) return base::InvalidArgument("KV pool: want a page count >= 0, got {}", count);
  std::vector<PageId> pages;
  int64_t missing = count > total_pages_ ? count - free_pages() : TryTake(count, pages);
  if (missing > 0 && count <= total_pages_) {
    base::MutexLock lock(evictor_mutex_);
    // Others may take what was just evicted: go on as long as something can be freed.
    for (missing = TryTake(count, pages); missing > 0; missing = TryTake(count, pages)) {
      if (evictor_ == nullptr || evictor_(missing) <= 0) break;
    }
  }
  if (missing > 0) {
    return base::ResourceExhausted("KV pool: want {} pages, free {} of {}", count, count - missing,
                                   total_pages_);
  }
  std::sort(pages.begin(), pages.end());
  for (const PageId page : pages) residency_.Reset(page);
  return pages;
}

void KvPool::AddRef(PageId page) {
  base::MutexLock lock(mutex_);
  if (!Held(page)) return Misuse("reference to", page);
  ++refs_[page];
}

void KvPool::Release(PageId page) {
  base::MutexLock lock(mutex_);
  ReleaseLocked(page);
}

void KvPool::Release(std::span<const PageId> pages) {
  base::MutexLock lock(mutex_);
  // Backwards, so that the stack hands them out again in the same order.
  for (size_t i = pages.size(); i > 0; --i) ReleaseLocked(pages[i - 1]);
}

void KvPool::ReleaseLocked(PageId page) {
  if (!Held(page)) return Misuse("release of", page);
  if (--refs_[page] == 0) free_.push_back(page);
}

void KvPool::Misuse(const char* what, PageId page) {
  misuses_.fetch_add(1, std::memory_order_relaxed);
  SMARTGEN_LOG(error, "kv", "{} page {} of {}, which nobody holds", what, page, total_pages_);
#ifndef NDEBUG
  std::abort();
#endif
}

int KvPool::ref_count(PageId page) const {
  base::MutexLock lock(mutex_);
  return page >= 0 && page < total_pages_ ? refs_[page] : 0;
}

void KvPool::SetEvictor(Evictor evictor) {
  base::MutexLock lock(evictor_mutex_);
  evictor_ = std::move(evictor);
}

}  // namespace smartgen::kv
