// What the emulator lets pass and what it must not.
#include "common/executor/cuda/emulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#define SMARTGEN_CUDA_EMULATE
#include "common/executor/cuda/device.h"

namespace smartgen::executor::cuda {
namespace {

using emulate::LaunchConfig;
using emulate::Order;
using testing::HasSubstr;

// The failure's text; empty without one.
std::string Launched(const LaunchConfig& config, absl::FunctionRef<void()> kernel) {
  const char* error = emulate::Launch(config, kernel);
  return error == nullptr ? "" : error;
}
LaunchConfig Threads(unsigned threads, unsigned blocks = 1) {
  return {.grid = {blocks, 1, 1}, .block = {threads, 1, 1}};
}

constexpr Order kOrders[] = {Order::kAscending, Order::kDescending, Order::kShuffled};

class EmulateTest : public testing::Test {
 protected:
  void TearDown() override { emulate::SetOrder(Order::kAscending); }
};

TEST_F(EmulateTest, EveryThreadOfEveryBlockRunsOnceWithItsIndices) {
  for (const Order order : kOrders) {
    emulate::SetOrder(order, 7);
    std::vector<int> runs(2 * 3 * 2 * 4 * 3 * 2);
    const LaunchConfig config{.grid = {2, 3, 2}, .block = {4, 3, 2}};
    EXPECT_EQ(Launched(config,
                       [&] {
                         const unsigned block =
                             blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
                         const unsigned thread =
                             threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
                         ++runs[block * 24 + thread];
                       }),
              "");
    EXPECT_THAT(runs, testing::Each(1));
  }
}

TEST_F(EmulateTest, ABarrierHoldsAllThreadsUntilTheLastHasCome) {
  for (const Order order : kOrders) {
    emulate::SetOrder(order, 3);
    std::vector<int> sums(2 * 100);
    EXPECT_EQ(Launched(Threads(100, 2),
                       [&] {
                         SMARTGEN_SHARED(int, values, 100);
                         const int t = static_cast<int>(threadIdx.x);
                         values[t] = t;
                         __syncthreads();
                         int sum = 0;
                         for (int i = 0; i < 100; ++i) sum += values[i];
                         sums[blockIdx.x * 100 + threadIdx.x] = sum;
                       }),
              "");
    EXPECT_THAT(sums, testing::Each(4950));
  }
}

TEST_F(EmulateTest, AMissingBarrierShowsInSomeOrder) {
  bool right[3] = {};
  for (int o = 0; o < 3; ++o) {
    emulate::SetOrder(kOrders[o], 5);
    int got = 0;
    EXPECT_EQ(Launched(Threads(64),
                       [&] {
                         SMARTGEN_SHARED(int, value, 1);
                         if (threadIdx.x == 0) value[0] = 17;
                         if (threadIdx.x == 63) got = value[0];
                       }),
              "");
    right[o] = got == 17;
  }
  EXPECT_FALSE(right[0] && right[1] && right[2]);
}

TEST_F(EmulateTest, ABarrierThatSomeThreadsNeverReachFails) {
  const std::string error = Launched(Threads(64), [] {
    if (threadIdx.x < 32) {
      __syncthreads();
    } else {
      __syncwarp(1u << (threadIdx.x % 32));
      __syncthreads();
    }
  });
  EXPECT_THAT(error, HasSubstr("not all live threads of the block reach this"));
  EXPECT_THAT(error, HasSubstr("emulate_test.cc"));
}

TEST_F(EmulateTest, ABarrierBesideAShuffleThatWaitsForItsThreadsFails) {
  EXPECT_THAT(Launched(Threads(32),
                       [] {
                         if (threadIdx.x == 3) {
                           __syncthreads();
                         } else {
                           (void)__shfl_xor_sync(kAllLanes, 1, 1);
                         }
                       }),
              HasSubstr("not all live threads"));
}

TEST_F(EmulateTest, ThreadsThatHaveReturnedAreNotWaitedForAtABarrier) {
  int passed = 0;
  EXPECT_EQ(Launched(Threads(64),
                     [&] {
                       if (threadIdx.x >= 40) return;
                       __syncthreads();
                       ++passed;
                     }),
            "");
  EXPECT_EQ(passed, 40);
}

TEST_F(EmulateTest, ShufflesAndVotesGiveWhatTheirDefinitionsSay) {
  emulate::SetOrder(Order::kShuffled, 11);
  EXPECT_EQ(Launched(Threads(64),
                     [] {
                       const int lane = static_cast<int>(threadIdx.x % 32);
                       const int self = static_cast<int>(threadIdx.x);
                       const int warp = self - lane;
                       EXPECT_EQ(__shfl_xor_sync(kAllLanes, self, 5), warp + (lane ^ 5));
                       EXPECT_EQ(__shfl_down_sync(kAllLanes, self, 3),
                                 lane + 3 < 32 ? self + 3 : self);
                       EXPECT_EQ(__shfl_up_sync(kAllLanes, self, 4), lane >= 4 ? self - 4 : self);
                       EXPECT_EQ(__shfl_sync(kAllLanes, self, 9), warp + 9);
                       EXPECT_EQ(__shfl_sync(kAllLanes, 0.5 * self, 9), 0.5 * (warp + 9));
                       EXPECT_EQ(__ballot_sync(kAllLanes, lane % 3 == 0), 0x49249249u);
                     }),
            "");
}

TEST_F(EmulateTest, TwoHalvesOfAWarpMayShuffleApart) {
  EXPECT_EQ(Launched(Threads(32),
                     [] {
                       const int lane = static_cast<int>(threadIdx.x);
                       const uint32_t mask = lane < 16 ? 0xffffu : 0xffff0000u;
                       if (lane < 16) {
                         EXPECT_EQ(__shfl_xor_sync(mask, lane, 1), lane ^ 1);
                       } else {
                         EXPECT_EQ(__ballot_sync(mask, true), mask);
                       }
                     }),
            "");
}

TEST_F(EmulateTest, AShuffleWhoseMaskNamesAThreadThatReturnedFails) {
  EXPECT_THAT(Launched(Threads(32),
                       [] {
                         if (threadIdx.x == 31) return;
                         (void)__shfl_xor_sync(kAllLanes, 1, 1);
                       }),
              HasSubstr("names lane 31, which has returned"));
}

TEST_F(EmulateTest, AShuffleWhoseMaskNamesALaneBeyondTheBlockFails) {
  EXPECT_THAT(Launched(Threads(48), [] { (void)__ballot_sync(kAllLanes, true); }),
              HasSubstr("names lane 16, which the block does not have"));
}

TEST_F(EmulateTest, AShuffleWhoseMaskLeavesTheCallerOutFails) {
  EXPECT_THAT(Launched(Threads(32), [] { (void)__shfl_up_sync(0xffu, 1, 1); }),
              HasSubstr("leaves out the caller's lane 8"));
}

TEST_F(EmulateTest, AShuffleFromALaneOutsideOfTheMaskFails) {
  EXPECT_THAT(Launched(Threads(32),
                       [] {
                         if (threadIdx.x < 16) (void)__shfl_sync(0xffffu, 1, 20);
                       }),
              HasSubstr("reads lane 20, which mask 0xffff leaves out"));
}

TEST_F(EmulateTest, TwoDifferentShufflesOfOneMaskFail) {
  EXPECT_THAT(Launched(Threads(32),
                       [] {
                         if (threadIdx.x % 2 == 0) {
                           (void)__shfl_xor_sync(kAllLanes, 1, 1);
                         } else {
                           (void)__ballot_sync(kAllLanes, true);
                         }
                       }),
              HasSubstr("diverges"));
}

TEST_F(EmulateTest, SharedMemoryBeyondTheLimitsFails) {
  EXPECT_THAT(Launched(Threads(1), [] { SMARTGEN_SHARED(int, big, 12 * 1024 + 4); }),
              HasSubstr("want at most 49152 bytes of static shared memory"));
  LaunchConfig config = Threads(1);
  config.dynamic_shared = 40 * 1024;
  EXPECT_THAT(Launched(config, [] { SMARTGEN_SHARED(int, more, 4 * 1024); }),
              HasSubstr("16384 static and 40960 dynamic"));
  config.dynamic_shared = 48 * 1024 + 1;
  EXPECT_THAT(Launched(config, [] {}), HasSubstr("dynamic shared memory, got 49153"));
}

TEST_F(EmulateTest, BlocksAndGridsBeyondTheLimitsFail) {
  EXPECT_EQ(Launched(Threads(1024), [] {}), "");
  EXPECT_THAT(Launched(Threads(1025), [] {}), HasSubstr("got 1025 x 1 x 1"));
  EXPECT_THAT(Launched(Threads(0), [] {}), HasSubstr("got 0 x 1 x 1"));
  EXPECT_THAT(Launched(Threads(1, 0), [] {}), HasSubstr("got 0 x 1 x 1"));
  EXPECT_THAT(Launched({.grid = {1, 65536, 1}}, [] {}), HasSubstr("got 1 x 65536 x 1"));
}

TEST_F(EmulateTest, AnIndexOutsideOfASharedArrayFails) {
  EXPECT_THAT(Launched(Threads(32),
                       [] {
                         SMARTGEN_SHARED(int, values, 31);
                         values[threadIdx.x] = 1;
                       }),
              HasSubstr("thread (31, 0, 0): index 31 of a shared array of 31 elements"));
  LaunchConfig config = Threads(1);
  config.dynamic_shared = 8;
  EXPECT_THAT(Launched(config,
                       [] {
                         SMARTGEN_DYNAMIC_SHARED(float, values);
                         values[-1] = 1;
                       }),
              HasSubstr("of a shared array of 2 elements"));
}

TEST_F(EmulateTest, AWriteBesideASharedArrayThroughAPointerFails) {
  EXPECT_THAT(Launched(Threads(1),
                       [] {
                         SMARTGEN_SHARED(int, values, 4);
                         int* volatile at = values.data();
                         at[4] = 1;
                       }),
              HasSubstr("write outside of this shared array of 16 bytes"));
}

TEST_F(EmulateTest, SharedMemoryIsNotClearedAndNotKeptFromBlockToBlock) {
  std::vector<int> seen;
  EXPECT_EQ(Launched(Threads(1, 3),
                     [&] {
                       SMARTGEN_SHARED(int, value, 1);
                       seen.push_back(value[0]);
                       value[0] = 1;
                     }),
            "");
  EXPECT_THAT(seen, testing::Each(static_cast<int>(0xcdcdcdcd)));
}

TEST_F(EmulateTest, AtomicsCountEveryThread) {
  unsigned sum = 0;
  int most = -1;
  EXPECT_EQ(Launched(Threads(96, 3),
                     [&] {
                       atomicAdd(&sum, 2u);
                       atomicMax(&most, static_cast<int>(threadIdx.x));
                     }),
            "");
  EXPECT_EQ(sum, 2u * 96 * 3);
  EXPECT_EQ(most, 95);
}

TEST_F(EmulateTest, ALaunchAfterAFailedOneRunsAsIfNothingHadHappened) {
  for (int round = 0; round < 3; ++round) {
    EXPECT_NE(Launched(Threads(64),
                       [] {
                         if (threadIdx.x % 2 == 0) __syncthreads();
                         (void)__ballot_sync(kAllLanes, true);
                       }),
              "");
    int passed = 0;
    EXPECT_EQ(Launched(Threads(64),
                       [&] {
                         __syncthreads();
                         ++passed;
                       }),
              "");
    EXPECT_EQ(passed, 64);
  }
}

}  // namespace
}  // namespace smartgen::executor::cuda
