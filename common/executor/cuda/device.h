// The language of the kernels in this folder: CUDA C++ where nvcc compiles them, the same names on
// top of the emulator where the host's compiler does (SMARTGEN_CUDA_EMULATE). Included by .cu files
// only. What CUDA has no function for, so that macros are needed:
//
//   SMARTGEN_SHARED(float, sums, 256);   __shared__ float sums[256]
//   SMARTGEN_DYNAMIC_SHARED(float, row); the block's dynamic shared memory
//   SMARTGEN_UNROLL                      before a loop: unrolled to the end, so that arrays that
//   its
//                                        counter indexes can be registers
//   SMARTGEN_UNROLL_BY(4)                before a loop: four turns at once
//
// Shared arrays are indexed, not pointed into, so that the emulator can check them.
//
// Sums that must have the CPU's bits use Multiply and Add, which are never fused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef SMARTGEN_CUDA_EMULATE

#include "common/executor/cuda/emulate.h"

#define SMARTGEN_SITE \
  ::smartgen::executor::cuda::emulate::Site { __FILE__, __LINE__ }
#define SMARTGEN_SHARED(type, name, count)                                                      \
  const ::smartgen::executor::cuda::emulate::SharedArray<type> name(                            \
      SMARTGEN_SITE,                                                                            \
      ::smartgen::executor::cuda::emulate::StaticShared(SMARTGEN_SITE, (count) * sizeof(type)), \
      count)
#define SMARTGEN_DYNAMIC_SHARED(type, name) \
  const auto name = ::smartgen::executor::cuda::emulate::DynamicArray<type>(SMARTGEN_SITE)

#define SMARTGEN_UNROLL
#define SMARTGEN_UNROLL_BY(turns)

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads, blocks)
#define threadIdx (::smartgen::executor::cuda::emulate::indices->thread)
#define blockIdx (::smartgen::executor::cuda::emulate::indices->block)
#define blockDim (::smartgen::executor::cuda::emulate::indices->block_dim)
#define gridDim (::smartgen::executor::cuda::emulate::indices->grid_dim)

#define SMARTGEN_SHUFFLE(kind, mask, value, argument)                                     \
  ::smartgen::executor::cuda::emulate::Shuffle(                                           \
      SMARTGEN_SITE, ::smartgen::executor::cuda::emulate::ShuffleKind::kind, mask, value, \
      static_cast<unsigned>(argument))
#define __syncthreads() ::smartgen::executor::cuda::emulate::SyncThreads(SMARTGEN_SITE)
#define __syncwarp(mask) ::smartgen::executor::cuda::emulate::SyncWarp(SMARTGEN_SITE, mask)
#define __ballot_sync(mask, predicate) \
  ::smartgen::executor::cuda::emulate::Ballot(SMARTGEN_SITE, mask, predicate)
#define __shfl_xor_sync(mask, value, lanes) SMARTGEN_SHUFFLE(kXor, mask, value, lanes)
#define __shfl_down_sync(mask, value, delta) SMARTGEN_SHUFFLE(kDown, mask, value, delta)
#define __shfl_up_sync(mask, value, delta) SMARTGEN_SHUFFLE(kUp, mask, value, delta)
#define __shfl_sync(mask, value, lane) SMARTGEN_SHUFFLE(kIndex, mask, value, lane)
#define atomicAdd(at, value) \
  ::smartgen::executor::cuda::emulate::AtomicAdd(SMARTGEN_SITE, at, value)
#define atomicOr(at, value) ::smartgen::executor::cuda::emulate::AtomicOr(SMARTGEN_SITE, at, value)
#define atomicMax(at, value) \
  ::smartgen::executor::cuda::emulate::AtomicMax(SMARTGEN_SITE, at, value)
#define atomicCAS(at, expected, desired) \
  ::smartgen::executor::cuda::emulate::AtomicCas(SMARTGEN_SITE, at, expected, desired)

#else  // nvcc

#include <cuda_runtime.h>

#define SMARTGEN_SHARED(type, name, count) __shared__ type name[count]
#define SMARTGEN_DYNAMIC_SHARED(type, name)                                \
  extern __shared__ __align__(16) unsigned char smartgen_dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(smartgen_dynamic_shared)
#define SMARTGEN_PRAGMA(text) _Pragma(#text)
#define SMARTGEN_UNROLL SMARTGEN_PRAGMA(unroll)
#define SMARTGEN_UNROLL_BY(turns) SMARTGEN_PRAGMA(unroll turns)

#endif

namespace smartgen::executor::cuda {

inline constexpr uint32_t kAllLanes = 0xffffffffu;

#ifdef SMARTGEN_CUDA_EMULATE
inline int PopCount(uint32_t x) { return __builtin_popcount(x); }
inline int PopCount(uint64_t x) { return __builtin_popcountll(x); }
// This folder's host compilation has -ffp-contract=off.
inline float Multiply(float a, float b) { return a * b; }
inline float Add(float a, float b) { return a + b; }
inline float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline uint32_t ToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
// Everything this thread wrote is seen by whoever sees the store (system scope: also by the host).
inline void StoreRelease(int8_t* at, int8_t value) {
  __atomic_store_n(at, value, __ATOMIC_RELEASE);
}
inline void FenceSystem() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline int8_t LoadAcquire(const int8_t* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
inline uint16_t LoadAcquire(const uint16_t* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
struct alignas(16) Bytes16 {
  uint32_t words[4];
};
#else
__device__ __forceinline__ int PopCount(uint32_t x) { return __popc(x); }
__device__ __forceinline__ int PopCount(uint64_t x) { return __popcll(x); }
__device__ __forceinline__ float Multiply(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float Add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float FromBits(uint32_t bits) { return __uint_as_float(bits); }
__device__ __forceinline__ uint32_t ToBits(float value) { return __float_as_uint(value); }
__device__ __forceinline__ void StoreRelease(int8_t* at, int8_t value) {
  asm volatile("st.release.sys.global.u8 [%0], %1;"
               :
               : "l"(__cvta_generic_to_global(at)), "r"(static_cast<uint32_t>(value))
               : "memory");
}
__device__ __forceinline__ void FenceSystem() { __threadfence_system(); }
__device__ __forceinline__ int8_t LoadAcquire(const int8_t* at) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u8 %0, [%1];"
               : "=r"(value)
               : "l"(__cvta_generic_to_global(at))
               : "memory");
  return static_cast<int8_t>(value);
}
__device__ __forceinline__ uint16_t LoadAcquire(const uint16_t* at) {
  uint16_t value;
  asm volatile("ld.acquire.sys.global.u16 %0, [%1];"
               : "=h"(value)
               : "l"(__cvta_generic_to_global(at))
               : "memory");
  return value;
}
using Bytes16 = uint4;
#endif

// Elements of KV as types; exact to float, nearest (ties to even) from float, NaN to a quiet NaN.
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

__device__ __forceinline__ float ToFloat(float value) { return value; }
__device__ __forceinline__ float ToFloat(Bf16 value) {
  return FromBits(static_cast<uint32_t>(value.bits) << 16);
}
__device__ __forceinline__ float ToFloat(F16 value) {
  // Exponent and mantissa in a float's place are 2^112 too small; the product is exact.
  const uint32_t magnitude = static_cast<uint32_t>(value.bits & 0x7fff) << 13;
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  const uint32_t special = (value.bits & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;
  return FromBits(ToBits(FromBits(magnitude) * 0x1p112f) | special | sign);
}

__device__ __forceinline__ void FromFloat(float value, float* out) { *out = value; }
__device__ __forceinline__ void FromFloat(float value, Bf16* out) {
  const uint32_t bits = ToBits(value);
  const uint32_t rounded = value != value ? bits | 0x400000u : bits + 0x7fff + ((bits >> 16) & 1);
  out->bits = static_cast<uint16_t>(rounded >> 16);
}
__device__ __forceinline__ void FromFloat(float value, F16* out) {
  const uint32_t bits = ToBits(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00;
  } else if (magnitude >= ToBits(65520.0f)) {
    half = 0x7c00;
  } else if (magnitude < ToBits(0x1p-14f)) {
    // A subnormal counts steps of 2^-24, the step of a float in [0.5, 1).
    half = ToBits(FromBits(magnitude) + 0.5f) - ToBits(0.5f);
  } else {
    half = ((magnitude + 0xfff + ((magnitude >> 13) & 1)) >> 13) - (112u << 10);
  }
  out->bits = static_cast<uint16_t>(sign | half);
}

// How many of the block's earlier threads gave true; `total`: how many in all. Blocks of kThreads,
// all of whom must come.
template <int kThreads>
__device__ __forceinline__ int BlockRank(bool flag, int* total) {
  static_assert(kThreads % 32 == 0);
  SMARTGEN_SHARED(int, counts, kThreads / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const uint32_t votes = __ballot_sync(kAllLanes, flag);
  if (lane == 0) counts[warp] = PopCount(votes);
  __syncthreads();
  int before = 0;
  int all = 0;
  for (int w = 0; w < kThreads / 32; ++w) {
    const int count = counts[w];
    before += w < warp ? count : 0;
    all += count;
  }
  *total = all;
  __syncthreads();  // the next call writes counts
  return before + PopCount(votes & ((1u << lane) - 1u));
}

// The sum of `value` over this thread and those before it; `total`: over all. As BlockRank.
template <int kThreads>
__device__ __forceinline__ int BlockInclusiveSum(int value, int* total) {
  static_assert(kThreads % 32 == 0);
  SMARTGEN_SHARED(int, sums, kThreads / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  for (int delta = 1; delta < 32; delta *= 2) {
    const int below = __shfl_up_sync(kAllLanes, value, delta);
    value += lane >= delta ? below : 0;
  }
  if (lane == 31) sums[warp] = value;
  __syncthreads();
  int before = 0;
  int all = 0;
  for (int w = 0; w < kThreads / 32; ++w) {
    const int sum = sums[w];
    before += w < warp ? sum : 0;
    all += sum;
  }
  *total = all;
  __syncthreads();  // the next call writes sums
  return before + value;
}

}  // namespace smartgen::executor::cuda
