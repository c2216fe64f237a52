#include "decode_server/placement.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>

namespace smartgen::decode_server {
namespace {

constexpr const char* kPeer = "10.0.0.1:7100";

// 1 ms a token, 10 ms a step and 1 ms more for each further stream; 2 ms to the peer and back, over
// 100 MB/s.
std::unique_ptr<transfer::CostModel> Costs() {
  transfer::CostPoints points;
  for (const int64_t n : {10, 100, 1000}) {
    points.prefill.push_back({n, 0, 1e-3 * static_cast<double>(n), false});
  }
  for (const int64_t n : {1, 2, 11}) {
    for (const int64_t context : {0, 1000}) {
      points.steps.push_back({n, context, 0.009 + 1e-3 * static_cast<double>(n), false});
    }
  }
  points.links = {{kPeer, 100e6, 0.002}};
  auto costs = transfer::CostModel::Create(points);
  EXPECT_TRUE(costs.ok()) << costs.status();
  return *std::move(costs);
}

class PlacementTest : public testing::Test {
 protected:
  base::TimePoint At(double seconds) const {
    return base::TimePoint{1} + base::FromSeconds(seconds);
  }
  bool KeepHere(int64_t tokens, const Placement::Load& load = {}, double at = 0) const {
    return placement_.KeepHere(tokens, 0, kPeer, load, At(at));
  }
  transfer::TtstInput Predict(int64_t tokens, const Placement::Load& load = {},
                              double at = 0) const {
    return placement_.Predict(tokens, 0, kPeer, load, At(at));
  }

  const std::unique_ptr<transfer::CostModel> costs_ = Costs();
  Placement placement_{{.layers = 4, .kv_bytes_per_token = 1000, .local_chunk_tokens = 100},
                       costs_.get()};
};

TEST_F(PlacementTest, PredictsBothSidesByTheCalibration) {
  const transfer::TtstInput input = Predict(200);
  EXPECT_NEAR(input.local_prefill_seconds, 0.2, 1e-9);
  EXPECT_NEAR(input.prefill_seconds, 0.2, 1e-9);
  EXPECT_NEAR(input.step_seconds, 0.01, 1e-9);
  EXPECT_NEAR(input.transfer_seconds, 200 * 1000 / 100e6, 1e-12);
  EXPECT_NEAR(input.round_trip_seconds, 0.002, 1e-12);
  EXPECT_NEAR(input.piece_share, 0.25, 1e-12);
  EXPECT_EQ(input.queue_seconds, 0);
  EXPECT_EQ(input.local_queue_seconds, 0);
}

// The way there and the last piece cost a little over 2 ms; a tenth of T_p counts against local.
TEST_F(PlacementTest, ShortPromptsStayHere) {
  EXPECT_TRUE(KeepHere(15));
  EXPECT_FALSE(KeepHere(100));
}

TEST_F(PlacementTest, StreamsThatRunHereMakeALocalPrefillDearer) {
  const transfer::TtstInput input = Predict(250, {.streams = 5});
  EXPECT_NEAR(input.step_seconds, 0.015, 1e-9);
  EXPECT_NEAR(input.local_prefill_seconds, 0.25 + 3 * 0.015, 1e-9) << "a step after each chunk";
  EXPECT_FALSE(KeepHere(15, {.streams = 5}));
}

TEST_F(PlacementTest, PromptsThatAreReadAlreadyStandBefore) {
  const Placement::Load load{.local = {{100, 0, 0}, {50, 0, 0}},
                             .remote = {{300, 0, 0.1}, {100, 0, 5}}};
  const transfer::TtstInput input = Predict(10, load);
  EXPECT_NEAR(input.local_queue_seconds, 0.15, 1e-9);
  EXPECT_NEAR(input.queue_seconds, 0.2, 1e-9) << "of the second nothing is left";
  EXPECT_TRUE(KeepHere(100, {.remote = {{1000, 0, 0}}})) << "there it would wait a second";
}

TEST_F(PlacementTest, AReportedQueueDrainsWithTime) {
  placement_.Queued(kPeer, 0.5, At(0));
  EXPECT_NEAR(Predict(10, {}, 0.1).queue_seconds, 0.4, 1e-6);
  EXPECT_TRUE(KeepHere(300, {}, 0.1));
  EXPECT_EQ(Predict(10, {}, 0.6).queue_seconds, 0);
  EXPECT_FALSE(KeepHere(300, {}, 0.6));
}

TEST_F(PlacementTest, ABrokenPeersQueueIsNotBelievedForLong) {
  placement_.Queued(kPeer, 1e300, At(0));
  EXPECT_EQ(Predict(10, {}, 61).queue_seconds, 0);
  placement_.Queued(kPeer, std::numeric_limits<double>::quiet_NaN(), At(100));
  placement_.Queued(kPeer, -5, At(100));
  EXPECT_EQ(Predict(10, {}, 100).queue_seconds, 0);
}

TEST_F(PlacementTest, LearnsWhatHappensHereAndThere) {
  for (int i = 0; i < 40; ++i) {
    placement_.Computed(100, 0, 0.2);
    placement_.Stepped(1, 100, 0.03);
    placement_.ComputedRemotely(kPeer, 100, 0, 0.05);
  }
  const transfer::TtstInput input = Predict(1000);
  EXPECT_NEAR(input.local_prefill_seconds, 2, 0.01);
  EXPECT_NEAR(input.step_seconds, 0.03, 0.001);
  EXPECT_NEAR(input.prefill_seconds, 0.5, 0.01);
}

TEST_F(PlacementTest, WithoutKnowledgeNothingStaysHere) {
  EXPECT_FALSE(placement_.KeepHere(1, 0, "10.0.0.2:7100", {}, At(0))) << "that way is not known";
  Placement none({}, nullptr);
  EXPECT_FALSE(none.known());
  EXPECT_FALSE(none.KeepHere(1, 0, kPeer, {}, At(0)));
  none.Computed(1, 0, 1);
  none.Stepped(1, 1, 1);
  none.Queued(kPeer, 1, At(0));
  none.ComputedRemotely(kPeer, 1, 0, 1);
}

}  // namespace
}  // namespace smartgen::decode_server
