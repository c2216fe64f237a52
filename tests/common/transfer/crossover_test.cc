#include "common/transfer/crossover.h"

#include <gtest/gtest.h>

namespace smartgen::transfer {
namespace {

// Two equal machines: T_p = 1 s, T_t = 4 s over 10 pieces, a step of 20 ms, a round trip of 2 ms.
TtstInput Example() {
  return {.local_prefill_seconds = 1,
          .step_seconds = 0.02,
          .prefill_seconds = 1,
          .transfer_seconds = 4,
          .round_trip_seconds = 0.002,
          .piece_share = 0.1};
}

TEST(CrossoverTest, SecondTokenTimesAreTheSumsOfTheirParts) {
  const Ttst ttst = PredictTtst(Example());
  EXPECT_DOUBLE_EQ(ttst.local, 1 + 0.02);
  EXPECT_DOUBLE_EQ(ttst.full, 0.002 + (0.1 * 1 + 4) + 0.02);
  EXPECT_DOUBLE_EQ(ttst.exact, 0.002 + 1 + 0.002 + 0.02);
}

TEST(CrossoverTest, QueuesCountWhereTheyAre) {
  TtstInput input = Example();
  input.local_queue_seconds = 3;
  input.queue_seconds = 5;
  const Ttst idle = PredictTtst(Example());
  const Ttst busy = PredictTtst(input);
  EXPECT_DOUBLE_EQ(busy.local - idle.local, 3);
  EXPECT_DOUBLE_EQ(busy.full - idle.full, 5);
  EXPECT_DOUBLE_EQ(busy.exact - idle.exact, 5);
}

TEST(CrossoverTest, ALinkThatHidesTheTransferLeavesItsLastPiece) {
  TtstInput input = Example();
  input.transfer_seconds = 0.01;
  input.piece_share = 0.001;
  const Ttst ttst = PredictTtst(input);
  EXPECT_DOUBLE_EQ(ttst.full, 0.002 + (1 + 0.001 * 0.01) + 0.02);
  EXPECT_EQ(ttst.exact, ttst.full) << "nothing is left to hand over";
}

TEST(CrossoverTest, WhatHangsOnUnknownTimesIsNotKnown) {
  TtstInput input = Example();
  input.transfer_seconds = 0;
  EXPECT_EQ(PredictTtst(input).full, 0);
  EXPECT_GT(PredictTtst(input).exact, 0);
  input.round_trip_seconds = 0;
  EXPECT_EQ(PredictTtst(input).exact, 0);
  EXPECT_GT(PredictTtst(input).local, 0);
  input.step_seconds = 0;
  EXPECT_EQ(PredictTtst(input).local, 0);
}

TEST(CrossoverTest, PiecesAreALayerOfAChunk) {
  EXPECT_DOUBLE_EQ(PieceShare(30, 2048, 2048), 1.0 / 30);
  EXPECT_DOUBLE_EQ(PieceShare(30, 2049, 2048), 1.0 / 60);
  EXPECT_DOUBLE_EQ(PieceShare(0, 0, 0), 1);
}

// Local costs 1.1 T_p + step, exact T_p + two round trips of 2 ms + step: equal at T_p = 40 ms.
TEST(LocalWinsTest, P6_UpToTenTimesWhatTheWayThereCosts) {
  TtstInput input = Example();
  for (const auto& [prefill, wins] : {std::pair{0.039, true}, {0.041, false}}) {
    input.local_prefill_seconds = input.prefill_seconds = prefill;
    EXPECT_EQ(LocalWins(input, 0), wins) << prefill;
  }
}

TEST(LocalWinsTest, LessTheMoreStreamsWouldBeHeldUp) {
  TtstInput input = Example();
  input.local_prefill_seconds = input.prefill_seconds = 0.015;
  EXPECT_TRUE(LocalWins(input, 1));   // 0.2 * 15 ms < 4 ms
  EXPECT_FALSE(LocalWins(input, 2));  // 0.3 * 15 ms > 4 ms
}

TEST(LocalWinsTest, WhereTheOtherSideIsBusyOrSlow) {
  TtstInput input = Example();
  EXPECT_FALSE(LocalWins(input, 0));
  input.queue_seconds = 0.2;
  EXPECT_TRUE(LocalWins(input, 0));
  input.queue_seconds = 0;
  input.prefill_seconds = 2;
  EXPECT_TRUE(LocalWins(input, 0));
  input.local_queue_seconds = 2;
  EXPECT_FALSE(LocalWins(input, 0));
}

TEST(LocalWinsTest, NotWithoutKnowledge) {
  TtstInput input = Example();
  input.local_prefill_seconds = input.prefill_seconds = 0.001;
  ASSERT_TRUE(LocalWins(input, 0));
  for (double TtstInput::*field : {&TtstInput::local_prefill_seconds, &TtstInput::prefill_seconds,
                                   &TtstInput::round_trip_seconds, &TtstInput::step_seconds}) {
    TtstInput unknown = input;
    unknown.*field = 0;
    EXPECT_FALSE(LocalWins(unknown, 0));
  }
}

}  // namespace
}  // namespace smartgen::transfer
