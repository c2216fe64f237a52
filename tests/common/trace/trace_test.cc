#include "common/trace/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

namespace smartgen::trace {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

TEST(KindsTest, EveryKindHasANameAndATrack) {
  std::set<std::string> seen;
  for (int i = 0; i < kNumKinds; ++i) {
    const KindInfo& info = Describe(static_cast<Kind>(i));
    EXPECT_EQ(static_cast<int>(info.kind), i);
    EXPECT_FALSE(info.name.empty()) << i;
    EXPECT_FALSE(info.category.empty()) << info.name;
    EXPECT_FALSE(info.track.empty()) << info.name;
    const std::string key =
        std::string(info.track) + "/" + std::string(info.name) + "/" + std::string(info.category);
    EXPECT_TRUE(seen.insert(key).second) << key;
  }
}

TEST(RequestTraceTest, StatesFollowEachOtherWithoutAGap) {
  base::SimulatedClock clock;
  RequestTrace trace("id", &clock, 100);
  const base::TimePoint begun = clock.Now();
  clock.Advance(milliseconds(1));
  trace.Enter(Kind::kWaiting);
  clock.Advance(milliseconds(2));
  trace.Enter(Kind::kDecoding);
  clock.Advance(milliseconds(4));
  trace.Finish(Kind::kRequest);
  const Snapshot read = trace.Read();
  ASSERT_EQ(read.events.size(), 3u);
  EXPECT_EQ(read.events[0].kind, Kind::kWaiting);
  EXPECT_EQ(read.events[0].begin, begun + milliseconds(1));
  EXPECT_EQ(read.events[0].duration, milliseconds(2));
  EXPECT_EQ(read.events[1].begin, begun + milliseconds(3));
  EXPECT_EQ(read.events[1].duration, milliseconds(4));
  EXPECT_EQ(read.events[2].begin, begun);
  EXPECT_EQ(read.events[2].duration, milliseconds(7));
  EXPECT_TRUE(read.finished);
}

TEST(RequestTraceTest, AFinishedTraceEntersNoStateAndFinishesOnce) {
  base::SimulatedClock clock;
  RequestTrace trace("id", &clock, 100);
  trace.Finish(Kind::kPrompt);
  trace.Enter(Kind::kLease);
  trace.Finish(Kind::kPrompt);
  EXPECT_EQ(trace.Read().events.size(), 1u);
}

TEST(RequestTraceTest, AStateUnderWayIsReadAsIfItEndedNow) {
  base::SimulatedClock clock;
  RequestTrace trace("id", &clock, 100);
  trace.Enter(Kind::kQueued);
  clock.Advance(milliseconds(5));
  const Snapshot read = trace.Read();
  ASSERT_EQ(read.events.size(), 1u);
  EXPECT_EQ(read.events[0].duration, milliseconds(5));
  EXPECT_FALSE(read.finished);
}

TEST(RequestTraceTest, BeyondItsLimitBulkEventsAreCountedAndTheOthersStillFit) {
  base::SimulatedClock clock;
  RequestTrace trace("id", &clock, 64);
  for (int i = 0; i < 100; ++i) trace.Mark(Kind::kSentFull);
  // A sixteenth is kept free.
  EXPECT_EQ(trace.Read().events.size(), 60u);
  EXPECT_EQ(trace.Read().dropped.at(Kind::kSentFull), 40u);
  for (int i = 0; i < 10; ++i) trace.Mark(Kind::kToken);
  EXPECT_EQ(trace.Read().events.size(), 64u);
  EXPECT_EQ(trace.Read().dropped.at(Kind::kToken), 6u);
}

TEST(RequestTraceTest, NotesAreReplacedAndBounded) {
  base::SimulatedClock clock;
  RequestTrace trace("id", &clock, 1);
  for (int i = 0; i < 1000; ++i) trace.Note(fmt::format("key{:04}", i), "old");
  trace.Note("key0000", "new");
  const auto notes = trace.Read().notes;
  EXPECT_EQ(notes.size(), 64u);
  EXPECT_EQ(notes.at("key0000"), "new");
}

TEST(RequestTraceTest, ThreadsLoseNoEvent) {
  RequestTrace trace("id", base::Clock::Real(), 1 << 16);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&trace, t] {
      for (int i = 0; i < 1000; ++i) {
        trace.Mark(Kind::kToken, {t, i});
        trace.Enter(i % 2 == 0 ? Kind::kReading : Kind::kDecoding);
        if (i % 100 == 0) trace.Read();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  trace.Finish(Kind::kRequest);
  const Snapshot read = trace.Read();
  int64_t tokens[4] = {};
  int64_t states = 0;
  for (const Event& event : read.events) {
    if (event.kind == Kind::kToken) ++tokens[event.args[0]];
    states += event.kind == Kind::kReading || event.kind == Kind::kDecoding ? 1 : 0;
  }
  for (const int64_t count : tokens) EXPECT_EQ(count, 1000);
  EXPECT_EQ(states, 4000);
  EXPECT_TRUE(read.dropped.empty());
}

TracePtr Kept(TraceStore& store, std::string_view id) {
  TracePtr trace = store.Begin(id);
  store.Keep(trace);
  return trace;
}

TEST(TraceStoreTest, ARequestThatIsRefusedTakesNobodysPlace) {
  base::SimulatedClock clock;
  TraceStore store({.max_requests = 1}, &clock);
  const TracePtr kept = Kept(store, "kept");
  for (int i = 0; i < 20; ++i) store.Begin("refused");
  EXPECT_TRUE(store.Find("kept").ok());
  EXPECT_EQ(store.Find("refused").status().code(), absl::StatusCode::kNotFound);
}

TEST(TraceStoreTest, ATraceThatGaveWayHoldsNothingAndTakesNothing) {
  base::SimulatedClock clock;
  TraceStore store({.max_requests = 1}, &clock);
  const TracePtr first = Kept(store, "first");
  first->Mark(Kind::kToken);
  ASSERT_EQ(first->Read().events.size(), 1u);
  Kept(store, "second");
  EXPECT_TRUE(first->Read().events.empty());
  first->Mark(Kind::kToken);
  first->Finish(Kind::kRequest);
  EXPECT_TRUE(first->Read().events.empty());
}

TEST(TraceStoreTest, TheOldestGivesWay) {
  base::SimulatedClock clock;
  TraceStore store({.max_requests = 2}, &clock);
  Kept(store, "a");
  Kept(store, "b");
  Kept(store, "c");
  EXPECT_EQ(store.Find("a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(store.Find("b").ok());
  EXPECT_TRUE(store.Find("c").ok());
}

TEST(TraceStoreTest, SeveralOfOneRequestComeInTheirOrder) {
  base::SimulatedClock clock;
  TraceStore store({}, &clock);
  const TracePtr first = Kept(store, "a");
  Kept(store, "b");
  const TracePtr second = Kept(store, "a");
  const auto found = store.Find("a");
  ASSERT_TRUE(found.ok());
  EXPECT_THAT(*found, ::testing::ElementsAre(first, second));
}

TEST(TraceStoreTest, TracesEndWithTheirTimeWithoutAnyoneAsking) {
  base::SimulatedClock clock;
  TraceStore store({.keep = seconds(60)}, &clock);
  std::weak_ptr<RequestTrace> trace = Kept(store, "a");
  clock.Advance(seconds(60));
  store.Expire();
  EXPECT_FALSE(trace.expired());
  clock.Advance(milliseconds(1));
  store.Expire();
  EXPECT_TRUE(trace.expired());
}

TEST(TraceStoreTest, WhatIsNotKeptIsAnErrorThatSaysHowToHaveIt) {
  base::SimulatedClock clock;
  TraceStore store({}, &clock);
  const absl::Status status = store.Find("cmpl-1").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cmpl-1"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"smartgen\": {\"trace\": true}"));
}

TEST(TraceStoreTest, NothingIsTracedWhereNoneAreKeptOrTheIdIsNone) {
  base::SimulatedClock clock;
  TraceStore none({.max_requests = 0}, &clock);
  EXPECT_EQ(none.Begin("a"), nullptr);
  EXPECT_THAT(std::string(none.Find("a").status().message()), HasSubstr("trace.requests is 0"));
  TraceStore some({}, &clock);
  EXPECT_EQ(some.Begin(""), nullptr);
  EXPECT_EQ(some.Begin(std::string(257, 'x')), nullptr);
  EXPECT_NE(some.Begin(std::string(256, 'x')), nullptr);
}

TEST(TraceStoreTest, OptionsOutOfRangeAreRefusedByName) {
  const auto message = [](TraceStore::Options options) {
    return std::string(options.Check().message());
  };
  EXPECT_EQ(message({}), "");
  EXPECT_THAT(message({.max_requests = -1}), HasSubstr("trace.requests"));
  EXPECT_THAT(message({.max_events = 0}), HasSubstr("trace.events"));
  EXPECT_THAT(message({.max_requests = 1024, .max_events = 1 << 20}),
              HasSubstr("times trace.events"));
  EXPECT_THAT(message({.keep = base::Duration(0)}), HasSubstr("trace.keep"));
}

}  // namespace
}  // namespace smartgen::trace
