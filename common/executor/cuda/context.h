// A device with the streams that an executor works on, and memory that grows with its needs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/device/device.h"
#include "common/executor/cuda/kernels.h"
#include "common/kv/pool.h"

namespace smartgen::executor::cuda {

// One thread uses it, but for status.
class Context {
 public:
  static absl::StatusOr<std::unique_ptr<Context>> Create(std::shared_ptr<device::Device> device);

  device::Device& device() { return *device_; }
  const std::shared_ptr<device::Device>& shared_device() const { return device_; }
  device::Stream& compute() { return *compute_; }
  device::Stream& copies() { return *copies_; }  // from the device, beside what computes
  Stream stream() const { return compute_->native(); }

  // First in every call from outside: the calling thread is the device's from here on.
  absl::Status Enter();
  // The error that ended the device's work; it is every later Enter's and Finish's. Thread-safe.
  absl::Status status() const {
    base::MutexLock lock(mutex_);
    return status_;
  }
  // The copies that follow begin when what is queued to compute is done.
  absl::Status CopiesFollow();
  // Until what has been queued on the stream so far is done. DeadlineExceeded after a minute.
  absl::Status FinishCompute() {
    RETURN_IF_ERROR(Finish(*compute_));
    ++finishes_;
    return absl::OkStatus();
  }
  absl::Status FinishCopies() { return Finish(*copies_); }
  // How often FinishCompute succeeded: what was queued before the latest of them is done.
  uint64_t finishes() const { return finishes_; }

 private:
  explicit Context(std::shared_ptr<device::Device> device) : device_(std::move(device)) {}
  absl::Status Keep(absl::Status status);
  absl::Status Finish(device::Stream& stream);
  absl::Status Await(device::Stream& stream);

  mutable base::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  const std::shared_ptr<device::Device> device_;
  uint64_t finishes_ = 0;
  std::unique_ptr<device::Event> computed_;
  std::unique_ptr<device::Event> done_;
  std::unique_ptr<device::Stream> compute_;
  std::unique_ptr<device::Stream> copies_;
};

// The status of a launch of `what`.
absl::Status Launched(LaunchError error, const char* what);

// Memory of the device (or pinned memory of the host) that only grows. What was in it is lost when
// it does, after queued work is done.
template <typename T, bool kPinned>
class GrowingArray {
 public:
  absl::Status Reserve(Context& context, int64_t count) {
    const auto bytes = static_cast<size_t>(count) * sizeof(T);
    if (memory_ != nullptr && memory_->size() >= bytes) return absl::OkStatus();
    if (memory_ != nullptr) {
      RETURN_IF_ERROR(context.FinishCompute());
      RETURN_IF_ERROR(context.FinishCopies());
      memory_ = nullptr;
    }
    auto made = kPinned ? context.device().AllocatePinned(bytes) : context.device().Allocate(bytes);
    RETURN_IF_ERROR(made.status());
    memory_ = *std::move(made);
    return absl::OkStatus();
  }
  T* data() const { return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_->data()); }

 private:
  std::unique_ptr<device::Memory> memory_;
};
template <typename T>
using DeviceArray = GrowingArray<T, false>;
template <typename T>
using PinnedArray = GrowingArray<T, true>;

// Small things on their way to the device. What was given stays until Reset, which is called when
// the stream has passed.
class Uploads {
 public:
  // The device's copy of `items`, valid for work that is queued to compute from now on.
  template <typename T>
  absl::StatusOr<T*> Add(Context& context, std::span<const T> items) {
    static_assert(std::is_trivially_copyable_v<T>);
    ASSIGN_OR_RETURN(std::byte* const to, AddTogether(context, {std::as_bytes(items)}));
    return reinterpret_cast<T*>(to);
  }
  template <typename T>
  absl::StatusOr<T*> Add(Context& context, const std::vector<T>& items) {
    return Add(context, std::span<const T>(items));
  }
  // Several in one copy, one after the other, each from the next multiple of kApart bytes on.
  static constexpr size_t kApart = 16;
  static size_t After(size_t bytes) { return (bytes + kApart - 1) / kApart * kApart; }
  absl::StatusOr<std::byte*> AddTogether(Context& context,
                                         std::initializer_list<std::span<const std::byte>> items);
  void Reset() { used_ = chunk_ = 0; }
  // Taken since Reset, with what was too short for what came.
  size_t bytes() const {
    size_t bytes = used_;
    for (size_t i = 0; i < chunk_; ++i) bytes += chunks_[i].host->size();
    return bytes;
  }

 private:
  struct Chunk {
    std::unique_ptr<device::Memory> host, device;
  };
  std::vector<Chunk> chunks_;
  size_t chunk_ = 0;
  size_t used_ = 0;  // of chunks_[chunk_]
};

// Pinned pages for a KvPool; keeps the device.
class PinnedPages final : public kv::PageMemory {
 public:
  explicit PinnedPages(std::shared_ptr<device::Device> device) : device_(std::move(device)) {}
  absl::StatusOr<std::span<std::byte>> Allocate(size_t bytes) override;
  void Free(std::span<std::byte> bytes) override;

 private:
  const std::shared_ptr<device::Device> device_;
  base::Mutex mutex_;
  std::vector<std::unique_ptr<device::Memory>> blocks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace smartgen::executor::cuda
