// What the tests of the layers' kernels share: rows with guards between them, and paged sequences
// that hold numbers only where the test says so.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "common/executor/cuda/layer_kernels.h"
#include "tests/common/executor_cuda/kernel_test_util.h"

namespace smartgen::executor::cuda {

inline constexpr uint8_t kGuardByte = 0xff;  // NaN as an element of any type

// Relative, where the output is of that type.
inline float Tolerance(kv::DType dtype) { return dtype == kv::DType::kF32 ? 1e-5f : 1e-2f; }

// [rows][length] elements at a stride, guards before, between and behind the rows.
class Rows {
 public:
  Rows(ShapeRandom& random, int64_t rows, int64_t length, kv::DType dtype = kv::DType::kF32)
      : rows_(rows), length_(length), stride_(length + random.Between(0, 3)), dtype_(dtype) {
    const int64_t elements = 2 * kGuard + rows * stride_;
    words_.resize(static_cast<size_t>((elements * kv::DTypeBytes(dtype) + 3) / 4));
    std::memset(words_.data(), kGuardByte, words_.size() * 4);
  }
  void Fill(ShapeRandom& random) {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t i = 0; i < length_; ++i) Set(r, i, random.Normal());
    }
  }
  int64_t stride() const { return stride_; }
  kv::DType dtype() const { return dtype_; }
  Element element() const { return static_cast<Element>(dtype_); }
  std::byte* data() { return At(0, 0); }
  float* floats() { return reinterpret_cast<float*>(At(0, 0)); }
  float* Row(int64_t row) { return reinterpret_cast<float*>(At(row, 0)); }
  std::byte* At(int64_t row, int64_t i) {
    return reinterpret_cast<std::byte*>(words_.data()) + Index(row, i) * kv::DTypeBytes(dtype_);
  }
  float Get(int64_t row, int64_t i) { return selector::LoadElement(At(row, i), dtype_); }
  void Set(int64_t row, int64_t i, float value) {
    selector::StoreElement(value, dtype_, At(row, i));
  }
  // Nobody wrote outside of the rows.
  bool GuardsStand() const {
    const auto* bytes = reinterpret_cast<const uint8_t*>(words_.data());
    const int64_t size = kv::DTypeBytes(dtype_);
    const int64_t end = static_cast<int64_t>(words_.size()) * 4;
    for (int64_t b = 0; b < end; ++b) {
      const int64_t at = b / size - kGuard;
      if (at >= 0 && at < rows_ * stride_ && at % stride_ < length_) continue;
      if (bytes[b] != kGuardByte) return false;
    }
    return true;
  }
  friend bool operator==(const Rows& a, const Rows& b) { return a.words_ == b.words_; }

 private:
  static constexpr int64_t kGuard = 8;
  int64_t Index(int64_t row, int64_t i) const { return kGuard + row * stride_ + i; }
  int64_t rows_, length_, stride_;
  kv::DType dtype_;
  std::vector<uint32_t> words_;
};

// Sequences of one layer in one pool, on pages in no order. All is NaN until it is written.
class PagedBatch {
 public:
  PagedBatch(ShapeRandom& random, int kv_heads, int head_dim, kv::DType dtype,
             const std::vector<int64_t>& tokens) {
    kv::KvLayout layout{.dtype = dtype, .token_capacity = kPage};
    layout.layers = {{.kv_heads = kv_heads, .head_dim = head_dim}};
    int64_t pages = 3;  // that nobody has
    for (const int64_t count : tokens) {
      pages += kv::KvPool::PagesFor(count);
      layout.token_capacity = std::max(layout.token_capacity, count + kPage);
    }
    auto pool = kv::KvPool::Create(layout, {.bytes = pages * layout.PageBytesTotal()});
    EXPECT_TRUE(pool.ok()) << pool.status();
    pool_ = std::move(pool).value();
    shared_ = std::make_unique<SharedWithDevice>(pool_->Data(0, 0),
                                                 static_cast<size_t>(pages * layout.PageBytes(0)));
    std::memset(pool_->Data(0, 0), kGuardByte, static_cast<size_t>(pages * layout.PageBytes(0)));
    auto all = pool_->Allocate(pages);
    EXPECT_TRUE(all.ok());
    for (size_t i = all->size(); i > 1; --i) {
      std::swap((*all)[i - 1], (*all)[random.Below(static_cast<uint32_t>(i))]);
    }
    auto next = all->begin();
    for (const int64_t count : tokens) {
      const auto end = next + kv::KvPool::PagesFor(count);
      sequences_.push_back(
          std::make_unique<kv::KvSequence>(pool_.get(), std::vector<kv::PageId>(next, end)));
      next = end;
    }
  }
  kv::KvSequence& operator[](size_t i) { return *sequences_[i]; }
  kv::KvPool& pool() { return *pool_; }
  const int32_t* Pages(size_t i) const { return sequences_[i]->pages().data(); }
  // Without pages.
  PagedLayer Layer() {
    const kv::KvLayout& layout = pool_->layout();
    return {.base = pool_->Data(0, 0),
            .page_bytes = layout.PageBytes(0),
            .kv_heads = layout.layers[0].kv_heads,
            .head_dim = layout.layers[0].head_dim,
            .element = static_cast<Element>(layout.dtype)};
  }
  std::byte* Key(size_t i, int head, int64_t token) {
    return sequences_[i]->Page(0, token / kPage) +
           pool_->layout().KOffset(0, head, static_cast<int>(token % kPage));
  }
  std::byte* Value(size_t i, int head, int64_t token) {
    return Key(i, head, token) + pool_->layout().PageBytes(0) / 2;
  }
  // Makes K and V of a token's head random numbers.
  void Write(ShapeRandom& random, size_t i, int head, int64_t token) {
    const kv::KvLayout& layout = pool_->layout();
    const int dim = layout.layers[0].head_dim;
    for (std::byte* row : {Key(i, head, token), Value(i, head, token)}) {
      const std::vector<std::byte> numbers = Elements(random, dim, layout.dtype);
      std::memcpy(row, numbers.data(), numbers.size());
    }
  }
  std::vector<std::byte> Bytes() {
    const std::byte* begin = pool_->Data(0, 0);
    return {begin, begin + pool_->total_pages() * pool_->layout().PageBytes(0)};
  }

 private:
  std::unique_ptr<kv::KvPool> pool_;
  std::unique_ptr<SharedWithDevice> shared_;
  std::vector<std::unique_ptr<kv::KvSequence>> sequences_;
};

// Ones and small ones, seldom large ones.
inline int SomeDim(ShapeRandom& random, int most) {
  if (random.OneIn(8)) return 1;
  return random.Between(1, random.OneIn(10) ? most : std::min(most, 40));
}
// None, one, or a few.
inline int SomeRows(ShapeRandom& random, int most) {
  return random.OneIn(8) ? random.Between(0, 1) : random.Between(1, most);
}

}  // namespace smartgen::executor::cuda
