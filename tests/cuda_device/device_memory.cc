#include "tests/cuda_device/device_memory.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>

namespace smartgen::executor::cuda {
namespace {

// Blocks of powers of two, carved off one region and kept in lists when they are freed. Before a
// block's data stands the logarithm of its size.
class Arena {
 public:
  void Open(std::byte* data, size_t bytes) {
    begin_ = next_ = data;
    end_ = data + bytes;
  }
  bool Has(const void* pointer) const {
    const auto* byte = static_cast<const std::byte*>(pointer);
    return begin_ != nullptr && byte >= begin_ && byte < end_;
  }
  bool open() const { return begin_ != nullptr; }

  void* Take(size_t size) {
    const auto log = static_cast<size_t>(std::bit_width(size + kHeader - 1));
    const std::lock_guard lock(mutex_);
    std::byte* block = free_[log];
    if (block != nullptr) {
      free_[log] = *reinterpret_cast<std::byte**>(block + kHeader);
    } else {
      const size_t bytes = size_t{1} << log;
      if (bytes > static_cast<size_t>(end_ - next_)) {
        std::fprintf(stderr, "shared memory is used up: %zu bytes were asked for\n", size);
        std::abort();
      }
      block = next_;
      next_ += bytes;
    }
    *reinterpret_cast<size_t*>(block) = log;
    return block + kHeader;
  }
  void Give(void* pointer) {
    std::byte* block = static_cast<std::byte*>(pointer) - kHeader;
    const std::lock_guard lock(mutex_);
    std::byte*& list = free_[*reinterpret_cast<size_t*>(block)];
    *static_cast<std::byte**>(pointer) = list;
    list = block;
  }

 private:
  static constexpr size_t kHeader = 16;  // keeps what operator new is to be aligned to
  std::byte* begin_ = nullptr;
  std::byte* end_ = nullptr;
  std::mutex mutex_;
  std::byte* next_ = nullptr;
  std::array<std::byte*, 64> free_ = {};
};

// Never destroyed: other static objects free their memory after it would be.
constinit Arena arena;

const char* Text(cudaError_t error) {
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

std::string ShareHeap(size_t bytes) {
  int device = 0;
  int same_address = 0;
  int registered = 0;
  for (const cudaError_t error :
       {cudaGetDevice(&device),
        cudaDeviceGetAttribute(&same_address, cudaDevAttrUnifiedAddressing, device),
        cudaDeviceGetAttribute(&registered, cudaDevAttrCanUseHostPointerForRegisteredMem,
                               device)}) {
    if (error != cudaSuccess) return cudaGetErrorString(error);
  }
  if (same_address == 0 || registered == 0) {
    return "the device does not reach pinned memory at the host's addresses";
  }
  void* data = nullptr;
  if (const cudaError_t error = cudaHostAlloc(&data, bytes, cudaHostAllocMapped);
      error != cudaSuccess) {
    return std::string("pinned memory: ") + cudaGetErrorString(error);
  }
  arena.Open(static_cast<std::byte*>(data), bytes);
  return "";
}

void RunOnSharedStack(const std::function<void()>& body) {
  constexpr size_t kStack = size_t{16} << 20;
  constexpr size_t kPageSize = 4096;
  auto* memory = static_cast<std::byte*>(::operator new(kStack + kPageSize));
  const size_t skip = -reinterpret_cast<uintptr_t>(memory) % kPageSize;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstack(&attributes, memory + skip, kStack);
  pthread_t thread;
  const int error = pthread_create(
      &thread, &attributes,
      [](void* argument) -> void* {
        (*static_cast<const std::function<void()>*>(argument))();
        return nullptr;
      },
      const_cast<std::function<void()>*>(&body));
  if (error != 0) {
    std::fprintf(stderr, "no thread on a shared stack: error %d\n", error);
    std::abort();
  }
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  ::operator delete(memory);
}

LaunchError FinishLaunches() { return Text(cudaDeviceSynchronize()); }

SharedWithDevice::SharedWithDevice(void* data, size_t bytes) : data_(data) {
  const cudaError_t error = cudaHostRegister(data, bytes, cudaHostRegisterMapped);
  if (error != cudaSuccess) {
    std::fprintf(stderr, "cudaHostRegister of %zu bytes: %s\n", bytes, cudaGetErrorString(error));
  }
}
SharedWithDevice::~SharedWithDevice() { cudaHostUnregister(data_); }

}  // namespace smartgen::executor::cuda

void* operator new(std::size_t size) {
  using smartgen::executor::cuda::arena;
  if (arena.open()) return arena.Take(size);
  if (void* data = std::malloc(size == 0 ? 1 : size)) return data;
  throw std::bad_alloc();
}
void operator delete(void* data) noexcept {
  using smartgen::executor::cuda::arena;
  if (data == nullptr) return;
  if (arena.Has(data)) {
    arena.Give(data);
  } else {
    std::free(data);
  }
}
void operator delete(void* data, std::size_t) noexcept { ::operator delete(data); }
