// Random shapes, and memory with guards, for the kernels' tests.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "common/executor/cuda/kernels.h"
#include "common/kv/sequence.h"
#include "common/selector/dtype.h"
#include "common/selector/random.h"
// The same tests run on a device where there is one (tests/cuda_device).
#ifdef SMARTGEN_ON_DEVICE
#include "tests/cuda_device/device_memory.h"
#else
#include "common/executor/cuda/emulate.h"
#endif

namespace smartgen::executor::cuda {

// Under the address sanitizer, where a switch of fibers takes ten times as long, a tenth. On a
// device, whose threads and blocks run as they like anyway, fewer, since each launch is waited for.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr int kShapes = 100;
#elif defined(SMARTGEN_ON_DEVICE)
inline constexpr int kShapes = 300;
#else
inline constexpr int kShapes = 1000;
#endif
#ifndef SMARTGEN_ON_DEVICE
// The emulator runs a kernel at once, on the host's memory.
inline LaunchError FinishLaunches() { return nullptr; }
struct SharedWithDevice {
  SharedWithDevice(void*, size_t) {}
};
#endif
static_assert(kPage == kv::kPageTokens);
static_assert(static_cast<int>(Element::kF32) == static_cast<int>(kv::DType::kF32));
static_assert(static_cast<int>(Element::kBF16) == static_cast<int>(kv::DType::kBF16));
static_assert(static_cast<int>(Element::kF16) == static_cast<int>(kv::DType::kF16));

class ShapeRandom : public selector::Random {
 public:
  using Random::Random;
  // Both ends included.
  int Between(int low, int high) {
    return low + static_cast<int>(Below(static_cast<uint32_t>(high - low + 1)));
  }
  bool OneIn(int n) { return Below(static_cast<uint32_t>(n)) == 0; }
  kv::DType DType() { return static_cast<kv::DType>(Below(3)); }
  std::vector<float> Normals(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& x : values) x = Normal();
    return values;
  }
  // Of this thread's next launches: another order of threads for each shape.
  void ShuffleThreads() {
    [[maybe_unused]] const uint64_t seed = Next();
#ifndef SMARTGEN_ON_DEVICE
    emulate::SetOrder(static_cast<emulate::Order>(seed % 3), seed);
#endif
  }
};

inline std::vector<std::byte> Elements(ShapeRandom& random, int64_t count, kv::DType dtype) {
  const int bytes = kv::DTypeBytes(dtype);
  std::vector<std::byte> out(static_cast<size_t>(count * bytes));
  for (int64_t i = 0; i < count; ++i) {
    selector::StoreElement(random.Normal(), dtype, out.data() + i * bytes);
  }
  return out;
}

// A sequence of one layer whose keys and values are random, on pages in no order.
class PagedSequence {
 public:
  PagedSequence(ShapeRandom& random, int kv_heads, int head_dim, kv::DType dtype, int64_t tokens) {
    kv::KvLayout layout{.dtype = dtype, .token_capacity = tokens + kPage};
    layout.layers = {{.kv_heads = kv_heads, .head_dim = head_dim}};
    const int64_t pages = kv::KvPool::PagesFor(tokens) + 3;
    auto pool = kv::KvPool::Create(layout, {.bytes = pages * layout.PageBytesTotal()});
    EXPECT_TRUE(pool.ok()) << pool.status();
    pool_ = std::move(pool).value();
    shared_ = std::make_unique<SharedWithDevice>(pool_->Data(0, 0),
                                                 static_cast<size_t>(pages * layout.PageBytes(0)));
    auto all = pool_->Allocate(pages);
    EXPECT_TRUE(all.ok());
    for (size_t i = all->size(); i > 1; --i) {
      std::swap((*all)[i - 1], (*all)[random.Below(static_cast<uint32_t>(i))]);
    }
    const std::vector<std::byte> bytes =
        Elements(random, pages * layout.PageBytes(0) / kv::DTypeBytes(dtype), dtype);
    std::memcpy(pool_->Data(0, 0), bytes.data(), bytes.size());
    // The rest stays taken, so that the pages used are any of the pool's.
    all->resize(static_cast<size_t>(kv::KvPool::PagesFor(tokens)));
    sequence_ = std::make_unique<kv::KvSequence>(pool_.get(), *std::move(all));
  }
  kv::KvSequence& operator*() { return *sequence_; }
  kv::KvSequence* operator->() { return sequence_.get(); }
  kv::KvPool& pool() { return *pool_; }
  PagedLayer Layer() {
    const kv::KvLayout& layout = pool_->layout();
    return {.base = pool_->Data(0, 0),
            .pages = sequence_->pages().data(),
            .page_bytes = layout.PageBytes(0),
            .kv_heads = layout.layers[0].kv_heads,
            .head_dim = layout.layers[0].head_dim,
            .element = static_cast<Element>(layout.dtype)};
  }

 private:
  std::unique_ptr<kv::KvPool> pool_;
  std::unique_ptr<SharedWithDevice> shared_;
  std::unique_ptr<kv::KvSequence> sequence_;
};

// The device's copy of a sequence's mask, of one layer.
class DeviceMask {
 public:
  explicit DeviceMask(PagedSequence& sequence)
      : layout_(sequence.pool().layout()), pages_(sequence.pool().total_pages()) {
    heads_a_page_ = layout_.layers[0].kv_heads;
    cells_.assign(static_cast<size_t>(pages_) * kPage / 4, 0);
    heads_.assign(static_cast<size_t>(pages_ * heads_a_page_ + 1) / 2, 0);
  }
  Mask View() {
    return {.cells = reinterpret_cast<int8_t*>(cells_.data()),
            .heads = reinterpret_cast<uint16_t*>(heads_.data()),
            .layers = 1,
            .heads_a_page = heads_a_page_,
            .layer = 0,
            .first_head = 0,
            .kv_heads = heads_a_page_};
  }

 private:
  const kv::KvLayout& layout_;
  int64_t pages_;
  int heads_a_page_;
  std::vector<uint32_t> cells_;  // words, for their alignment
  std::vector<uint32_t> heads_;
};

// And done.
#define ASSERT_LAUNCHED(expression)                               \
  do {                                                            \
    LaunchError launch_error = (expression);                      \
    if (launch_error == nullptr) launch_error = FinishLaunches(); \
    ASSERT_EQ(launch_error, nullptr) << launch_error;             \
  } while (false)

}  // namespace smartgen::executor::cuda
