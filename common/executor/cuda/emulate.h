// CUDA's execution model on the host, strictly: what runs the kernels of this folder where there is
// no GPU, and finds what a GPU would let pass on a lucky day.
//
// Every thread of a block is a fiber of the calling thread; it runs until it must wait for others
// (a barrier, a shuffle, a vote) or returns. Blocks follow each other. The order of threads and of
// blocks can be varied (Order), so that a kernel that lacks a barrier gives different results or
// reads what nobody wrote. A launch fails, with a text that names block, thread, file and line, for
//   - a grid, block or shared memory beyond the limits of the hardware,
//   - __syncthreads or __syncwarp that not all live threads of the block or mask reach, or that
//   they
//     reach at different lines,
//   - a shuffle or vote whose mask names a thread that does not take part, or leaves the caller
//   out,
//     or that reads from a lane outside the mask,
//   - an index outside of a shared array, a write to its surroundings through a pointer, and an
//     atomic at an address that is not a multiple of its size.
// Shared memory is filled with a pattern when a block begins, since a GPU does not clear it.
// Not seen: memory orders (one thread of the host runs all), races on global memory between
// barriers other than through Order, bank conflicts, anything of speed.
//
// Kernels include device.h, which gives the names of CUDA to what stands here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>

#include "absl/functional/function_ref.h"

namespace smartgen::executor::cuda::emulate {

inline constexpr unsigned kWarpSize = 32;
// Of compute capability 8.0 and up, CUDA C++ Programming Guide, "Features and Technical
// Specifications".
inline constexpr unsigned kMaxThreads = 1024;
inline constexpr size_t kMaxStaticShared = 48 * 1024;
inline constexpr size_t kMaxShared = 48 * 1024;  // static and dynamic, without opting in

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

// The order in which runnable threads of a block, and blocks of a grid, take their turns.
enum class Order : uint8_t { kAscending, kDescending, kShuffled };
// Of this thread's launches from now on; ascending at first.
void SetOrder(Order order, uint64_t seed = 0);

struct LaunchConfig {
  Dim3 grid;
  Dim3 block;
  size_t dynamic_shared = 0;  // bytes
};

// Runs `kernel` once for each thread of each block. Null when all went well; otherwise what went
// wrong first, valid until this thread's next launch. What a failed kernel wrote until then stays.
// Kernels must not own anything: the fibers of a failed block are dropped where they stand.
const char* Launch(const LaunchConfig& config, absl::FunctionRef<void()> kernel);

// Where streams are queues of their own (a double's), launches go there: `queue` is given the
// stream and what runs the kernel there and says what went wrong. Empty: launches run at once. Not
// to be set while launches are under way.
using QueuedLaunch = std::function<const char*()>;
void SetQueue(std::function<void(void* stream, QueuedLaunch launch)> queue);
const char* LaunchOn(void* stream, QueuedLaunch launch);

// --- What device.h names. Only inside a kernel. ---

struct Site {
  const char* file;
  int line;
};
struct ThreadIndices {
  Dim3 thread;
  Dim3 block;
  Dim3 block_dim;
  Dim3 grid_dim;
};
extern thread_local const ThreadIndices* indices;  // of the running fiber

// Ends the launch with this text, which is taken: the stack that it stood on is dropped. Does not
// return.
[[noreturn]] void Fail(Site site, std::string&& what);

void SyncThreads(Site site);
void SyncWarp(Site site, uint32_t mask);
uint32_t Ballot(Site site, uint32_t mask, bool predicate);

enum class ShuffleKind : uint8_t { kXor, kDown, kUp, kIndex };
uint64_t ShuffleBits(Site site, ShuffleKind kind, uint32_t mask, uint64_t value, unsigned argument);
template <typename T>
T Shuffle(Site site, ShuffleKind kind, uint32_t mask, T value, unsigned argument) {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  bits = ShuffleBits(site, kind, mask, bits, argument);
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// The block's array that is declared at `site`, made by the first thread that comes by.
void* StaticShared(Site site, size_t bytes);
// The block's dynamic shared memory and its size.
void* DynamicShared(size_t* bytes);

// What stands for an array in shared memory: as one, but for the check of indices.
template <typename T>
class SharedArray {
 public:
  static_assert(std::is_trivial_v<T>);
  SharedArray(Site site, void* data, size_t count)
      : site_(site), data_(static_cast<T*>(data)), count_(count) {}
  template <typename I>
  T& operator[](I index) const {
    if (static_cast<uint64_t>(index) >= count_) {
      Fail(site_, "index " + std::to_string(index) + " of a shared array of " +
                      std::to_string(count_) + " elements");
    }
    return data_[index];
  }
  T* data() const { return data_; }

 private:
  Site site_;
  T* data_;
  size_t count_;
};

template <typename T>
SharedArray<T> DynamicArray(Site site) {
  size_t bytes = 0;
  void* data = DynamicShared(&bytes);
  return SharedArray<T>(site, data, bytes / sizeof(T));
}

template <typename T>
void CheckAligned(Site site, const T* at) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(T) == 0) return;
  Fail(site, "atomic on " + std::to_string(sizeof(T)) + " bytes at an address that is no multiple");
}
template <typename T>
T AtomicAdd(Site site, T* at, T value) {
  CheckAligned(site, at);
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
template <typename T>
T AtomicOr(Site site, T* at, T value) {
  CheckAligned(site, at);
  return __atomic_fetch_or(at, value, __ATOMIC_RELAXED);
}
template <typename T>
T AtomicMax(Site site, T* at, T value) {
  CheckAligned(site, at);
  const T old = *at;
  if (value > old) *at = value;
  return old;
}
template <typename T>
T AtomicCas(Site site, T* at, T expected, T desired) {
  CheckAligned(site, at);
  __atomic_compare_exchange_n(at, &expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return expected;
}

}  // namespace smartgen::executor::cuda::emulate
