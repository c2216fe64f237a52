#include "common/executor/cpu/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace smartgen::executor::cpu {
namespace {

constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kArenaBlock = 32 << 20;

int64_t RoundUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

}  // namespace

void FreeDeleter::operator()(void* p) const { std::free(p); }

std::unique_ptr<std::byte, FreeDeleter> AllocateAligned(int64_t bytes) {
  const int64_t alignment = bytes >= kHugePage ? kHugePage : 64;
  const int64_t size = RoundUp(std::max<int64_t>(bytes, 1), alignment);
  void* p = std::aligned_alloc(alignment, size);
  if (p == nullptr) {
    std::fprintf(stderr, "out of memory: %lld bytes for the executor\n",
                 static_cast<long long>(size));
    std::abort();
  }
  // Only a hint: fewer TLB misses while weights stream by.
  if (alignment == kHugePage) (void)madvise(p, size, MADV_HUGEPAGE);
  return std::unique_ptr<std::byte, FreeDeleter>(static_cast<std::byte*>(p));
}

void FloatBuffer::Resize(int64_t size) {
  if (size <= size_) return;
  bytes_.reset();
  bytes_ = AllocateAligned(size * static_cast<int64_t>(sizeof(float)));
  size_ = size;
}

std::byte* Arena::Allocate(int64_t bytes) {
  bytes = RoundUp(bytes, 64);
  if (bytes > left_) {
    const int64_t block = std::max(bytes, kArenaBlock);
    blocks_.push_back(AllocateAligned(block));
    next_ = blocks_.back().get();
    left_ = block;
  }
  std::byte* p = next_;
  next_ += bytes;
  left_ -= bytes;
  allocated_ += bytes;
  return p;
}

}  // namespace smartgen::executor::cpu
