#include "common/kv/lease.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "tests/common/kv/kv_test_util.h"

namespace smartgen::kv {
namespace {

using base::TransferId;
using std::chrono::milliseconds;
using std::chrono::seconds;
using End = LeaseTable::End;

class LeaseTableTest : public testing::Test {
 protected:
  LeaseTable::OnEnd Record() {
    return [this](End end) { ends_.push_back(end); };
  }

  base::SimulatedClock clock_;
  std::vector<End> ends_;
  LeaseTable table_{&clock_, seconds(1), /*start_timer=*/false};
  const TransferId id_{1, 2};
};

TEST_F(LeaseTableTest, LeaseExpiresWhenDueAndNotBefore) {
  ASSERT_TRUE(table_.Grant(id_, seconds(5), Record()).ok());
  clock_.Advance(seconds(5) - base::Duration(1));
  EXPECT_EQ(table_.ExpireDue(), 0);
  clock_.Advance(base::Duration(1));
  EXPECT_EQ(table_.ExpireDue(), 1);
  EXPECT_EQ(ends_, std::vector<End>{End::kExpired});
  EXPECT_EQ(table_.size(), 0);
  EXPECT_EQ(table_.ExpireDue(), 0);
}

TEST_F(LeaseTableTest, RenewCountsFromNow) {
  ASSERT_TRUE(table_.Grant(id_, seconds(5), Record()).ok());
  clock_.Advance(seconds(4));
  ASSERT_TRUE(table_.Renew(id_, seconds(5)).ok());
  clock_.Advance(seconds(4));
  EXPECT_EQ(table_.ExpireDue(), 0);
  clock_.Advance(seconds(1));
  EXPECT_EQ(table_.ExpireDue(), 1);
}

TEST_F(LeaseTableTest, RenewNeverRevives) {
  ASSERT_TRUE(table_.Grant(id_, seconds(5), Record()).ok());
  clock_.Advance(seconds(5));
  // Due, but not swept yet.
  EXPECT_EQ(table_.Renew(id_, seconds(5)).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(table_.ExpireDue(), 1);
  EXPECT_EQ(table_.Renew(id_, seconds(5)).code(), absl::StatusCode::kNotFound);
  const TransferId released{7, 7};
  ASSERT_TRUE(table_.Grant(released, seconds(5), Record()).ok());
  EXPECT_TRUE(table_.Release(released));
  EXPECT_EQ(table_.Renew(released, seconds(5)).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ends_, (std::vector<End>{End::kExpired, End::kReleased}));
}

TEST_F(LeaseTableTest, ReleaseEndsOnceAndLaterOnesAreHarmless) {
  ASSERT_TRUE(table_.Grant(id_, seconds(5), Record()).ok());
  EXPECT_TRUE(table_.Release(id_));
  EXPECT_FALSE(table_.Release(id_));
  EXPECT_FALSE(table_.Release({9, 9}));
  clock_.Advance(seconds(10));
  EXPECT_EQ(table_.ExpireDue(), 0);
  EXPECT_EQ(ends_, std::vector<End>{End::kReleased});
}

TEST_F(LeaseTableTest, ASecondGrantOfALiveIdIsRefused) {
  ASSERT_TRUE(table_.Grant(id_, seconds(5), Record()).ok());
  EXPECT_EQ(table_.Grant(id_, seconds(5), Record()).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(table_.Release(id_));
  EXPECT_TRUE(table_.Grant(id_, seconds(5), Record()).ok());
}

TEST_F(LeaseTableTest, DurationsOutsideTheBoundsAreRefused) {
  for (const base::Duration bad :
       {base::Duration(0), base::Duration(-1), base::Duration(INT64_MAX)}) {
    EXPECT_EQ(table_.Grant(id_, bad, Record()).code(), absl::StatusCode::kInvalidArgument);
  }
  ASSERT_TRUE(table_.Grant(id_, seconds(5), Record()).ok());
  EXPECT_EQ(table_.Renew(id_, base::Duration(INT64_MAX)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(table_.Grant({3, 3}, seconds(5), nullptr).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LeaseTableTest, ACallbackMayUseTheTable) {
  const TransferId next{5, 5};
  ASSERT_TRUE(table_
                  .Grant(id_, seconds(1),
                         [&](End) {
                           EXPECT_FALSE(table_.Release(id_));
                           EXPECT_TRUE(table_.Grant(next, seconds(1), Record()).ok());
                         })
                  .ok());
  clock_.Advance(seconds(1));
  EXPECT_EQ(table_.ExpireDue(), 1);
  EXPECT_EQ(table_.size(), 1);
}

TEST(LeaseTable, ShutdownEndsWhatIsLeft) {
  base::SimulatedClock clock;
  std::vector<End> ends;
  {
    LeaseTable table(&clock, seconds(1), true);
    ASSERT_TRUE(table.Grant({1, 1}, seconds(5), [&](End end) { ends.push_back(end); }).ok());
  }
  EXPECT_EQ(ends, std::vector<End>{End::kShutdown});
}

// The pool is full of expired transfers and nobody asks for anything: the timer alone frees them.
TEST(LeaseTable, L10_TheTimerAloneFreesExpiredTransfers) {
  const auto pool = MakePool(32);
  base::Mutex mutex;
  base::CondVar changed;
  int ended = 0;
  LeaseTable table(base::Clock::Real(), milliseconds(1), true);
  for (uint64_t i = 0; i < 8; ++i) {
    auto sequence = std::make_shared<KvSequence>(pool.get());
    ASSERT_TRUE(sequence->Reserve(64).ok());
    ASSERT_TRUE(table
                    .Grant({i, i}, milliseconds(10),
                           [&, sequence = std::move(sequence)](End end) mutable {
                             EXPECT_EQ(end, End::kExpired);
                             sequence.reset();
                             base::MutexLock lock(mutex);
                             ++ended;
                             changed.NotifyAll();
                           })
                    .ok());
  }
  const base::Clock& clock = *base::Clock::Real();
  const auto deadline = base::Deadline::After(clock, seconds(30));
  {
    base::MutexLock lock(mutex);
    while (ended < 8 && !deadline.Expired(clock)) changed.WaitFor(mutex, deadline.Remaining(clock));
    ASSERT_EQ(ended, 8);
  }
  EXPECT_EQ(pool->free_pages(), 32);
  EXPECT_EQ(table.size(), 0);
}

// Release, renewal and expiry race for the same leases; each ends exactly once.
TEST(LeaseTable, EveryLeaseEndsExactlyOnceUnderRaces) {
  constexpr uint64_t kLeases = 2000;
  base::SimulatedClock clock;
  std::vector<std::atomic<int>> ended(kLeases);
  {
    LeaseTable table(&clock, milliseconds(1), true);
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
      for (uint64_t i = 0; i < kLeases; ++i) {
        EXPECT_TRUE(
            table.Grant({0, i}, milliseconds(1 + i % 7), [&ended, i](End) { ++ended[i]; }).ok());
        clock.Advance(base::Duration(100'000));
      }
    });
    threads.emplace_back([&] {
      for (uint64_t i = 0; i < kLeases; ++i) table.Release({0, i});
    });
    threads.emplace_back([&] {
      for (uint64_t i = 0; i < kLeases; ++i) (void)table.Renew({0, i}, milliseconds(3));
    });
    threads.emplace_back([&] {
      for (uint64_t i = 0; i < kLeases; ++i) table.ExpireDue();
    });
    for (std::thread& thread : threads) thread.join();
  }
  for (uint64_t i = 0; i < kLeases; ++i) ASSERT_EQ(ended[i], 1) << i;
}

}  // namespace
}  // namespace smartgen::kv
