#include "common/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace smartgen::base {
namespace {

TEST(ThreadPool, CallsEveryIndexOnce) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.size(), threads);
    for (const int64_t count : {0, 1, 2, 3, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
      pool.ParallelFor(count, [&](int64_t i, int worker) {
        EXPECT_GE(worker, 0);
        EXPECT_LT(worker, threads);
        ++calls[i];
      });
      for (const auto& n : calls) EXPECT_EQ(n, 1);
    }
  }
}

TEST(ThreadPool, ZeroMeansTheCoresThisProcessMayUse) {
  ThreadPool pool(0);
  EXPECT_GE(pool.size(), 1);
}

TEST(ThreadPool, AWorkerNumberIsNeverUsedByTwoThreadsAtOnce) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> busy(4);
  std::atomic<int> clashes{0};
  for (int round = 0; round < 200; ++round) {
    pool.ParallelFor(64, [&](int64_t, int worker) {
      clashes += busy[worker].fetch_add(1);
      busy[worker].fetch_sub(1);
    });
  }
  EXPECT_EQ(clashes, 0);
}

TEST(ThreadPool, WhatTheTasksWroteIsVisibleAfterwards) {
  ThreadPool pool(3);
  std::vector<int64_t> values(500);
  for (int64_t round = 1; round <= 500; ++round) {
    pool.ParallelFor(500, [&](int64_t i, int) { values[i] = i * round; });
    for (int64_t i = 0; i < 500; ++i) ASSERT_EQ(values[i], i * round);
  }
}

TEST(ThreadPool, IndicesAreHandedOutInAscendingOrder) {
  ThreadPool pool(1);
  std::vector<int64_t> order;
  pool.ParallelFor(5, [&](int64_t i, int) { order.push_back(i); });
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3, 4}));
}

TEST(ThreadPool, CallsFromSeveralThreadsQueueUp) {
  ThreadPool pool(2);
  std::atomic<int64_t> sum{0};
  std::vector<std::atomic<int>> active(4);
  std::atomic<int> overlaps{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&, c] {
      for (int round = 0; round < 200; ++round) {
        pool.ParallelFor(10, [&](int64_t i, int) {
          ++active[c];
          for (int other = 0; other < 4; ++other) overlaps += other != c && active[other] != 0;
          sum += i;
          --active[c];
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 4 * 200 * 45);
  EXPECT_EQ(overlaps, 0);
}

TEST(ThreadPool, AnIdlePoolIsDestroyedAtOnce) {
  for (int i = 0; i < 100; ++i) ThreadPool pool(3);
}

}  // namespace
}  // namespace smartgen::base
