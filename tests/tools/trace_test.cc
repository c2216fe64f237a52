#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tools/trace/chrome.h"
#include "tools/trace/collect.h"

namespace smartgen::tools::trace_view {
namespace {

// By (pid, tid), in the order in which they were written.
std::map<std::pair<int, int>, std::vector<Json>> ByThread(const Json& trace) {
  std::map<std::pair<int, int>, std::vector<Json>> threads;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") threads[{event["pid"], event["tid"]}].push_back(event);
  }
  return threads;
}

std::string ThreadName(const Json& trace, int pid, int tid) {
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "M" && event["name"] == "thread_name" && event["pid"] == pid &&
        event["tid"] == tid) {
      return event["args"]["name"];
    }
  }
  return "";
}

TEST(ChromeTest, TimesAreMicrosecondsSinceTheEarliestEvent) {
  const Process process{
      .name = "decoded A",
      .events = {{.name = "late", .track = "t", .begin_ns = 5'002'500, .duration_ns = 1'500},
                 {.name = "early", .track = "t", .begin_ns = 5'000'000, .duration_ns = 1'000},
                 {.name = "moment",
                  .track = "t",
                  .instant = true,
                  .begin_ns = 5'010'000,
                  .args = {{"bytes", 7}}}}};
  const Json trace = ToChrome({&process, 1}, Json{{"request_id", "cmpl-1"}});
  EXPECT_EQ(trace["otherData"]["request_id"], "cmpl-1");
  std::map<std::string, Json> events;
  for (const Json& event : trace["traceEvents"]) events[event["name"]] = event;
  EXPECT_EQ(events["process_name"]["args"]["name"], "decoded A");
  EXPECT_EQ(events["early"]["ts"], 0.0);
  EXPECT_EQ(events["late"]["ts"], 2.5);
  EXPECT_EQ(events["late"]["dur"], 1.5);
  EXPECT_EQ(events["moment"]["ph"], "i");
  EXPECT_EQ(events["moment"]["s"], "t");
  EXPECT_EQ(events["moment"]["args"]["bytes"], 7);
}

TEST(ChromeTest, AStepHoldsItsParts) {
  const Process process{
      .name = "p",
      .events = {{.name = "part", .track = "t", .begin_ns = 10, .duration_ns = 10},
                 {.name = "part", .track = "t", .begin_ns = 20, .duration_ns = 10},
                 {.name = "step", .track = "t", .begin_ns = 10, .duration_ns = 20}}};
  const auto threads = ByThread(ToChrome({&process, 1}, {}));
  ASSERT_EQ(threads.size(), 1u);
  EXPECT_EQ(threads.begin()->second[0]["name"], "step");
}

TEST(ChromeTest, WhatOverlapsGoesToAThreadOfItsOwn) {
  const Process process{
      .name = "p",
      .events = {{.name = "a", .track = "fetch", .begin_ns = 0, .duration_ns = 10},
                 {.name = "b", .track = "fetch", .begin_ns = 5, .duration_ns = 10},
                 {.name = "c", .track = "fetch", .begin_ns = 10, .duration_ns = 1}}};
  const Json trace = ToChrome({&process, 1}, {});
  EXPECT_EQ(ByThread(trace).size(), 2u);
  EXPECT_EQ(ThreadName(trace, 1, 1), "fetch");
  EXPECT_EQ(ThreadName(trace, 1, 2), "fetch (2)");
}

// A viewer draws a thread as nested boxes: of two events one holds the other, or they are apart.
TEST(ChromeTest, AnyEventsNestInTheirThreads) {
  std::mt19937 random(7);
  Process process{.name = "p"};
  for (int i = 0; i < 2000; ++i) {
    process.events.push_back({.name = "e",
                              .track = i % 3 == 0 ? "one" : "two",
                              .begin_ns = static_cast<int64_t>(random() % 10000),
                              .duration_ns = static_cast<int64_t>(random() % 300)});
  }
  size_t seen = 0;
  for (const auto& [thread, events] : ByThread(ToChrome({&process, 1}, {}))) {
    seen += events.size();
    for (size_t i = 0; i < events.size(); ++i) {
      for (size_t j = i + 1; j < events.size(); ++j) {
        const double a = events[i]["ts"], a_end = a + events[i]["dur"].get<double>();
        const double b = events[j]["ts"], b_end = b + events[j]["dur"].get<double>();
        constexpr double kRounding = 1e-6;
        const bool apart = b >= a_end - kRounding || a >= b_end - kRounding;
        const bool held = (a <= b + kRounding && b_end <= a_end + kRounding) ||
                          (b <= a + kRounding && a_end <= b_end + kRounding);
        ASSERT_TRUE(apart || held) << events[i].dump() << events[j].dump();
      }
    }
  }
  EXPECT_EQ(seen, process.events.size());
}

TEST(ChromeTest, NoEventsAreATraceAllTheSame) {
  EXPECT_TRUE(ToChrome({}, Json::object())["traceEvents"].empty());
  EXPECT_EQ(EarliestNs({}), 0);
}

TEST(ClockOffsetTest, TheMiddleOfTheRoundTripIsTheDaemonsMiddle) {
  // Theirs is 1000 ahead: 10 there, 4 at the daemon, 30 back. The middle is 10 off.
  const ClockSample sample{
      .asked_ns = 500, .received_ns = 1510, .sent_ns = 1514, .answered_ns = 544};
  const ClockOffset offset = EstimateOffset({&sample, 1});
  EXPECT_EQ(offset.round_trip_ns, 40);
  EXPECT_EQ(offset.uncertainty_ns, 20);
  EXPECT_EQ(offset.offset_ns, -990);
  EXPECT_LE(std::abs(offset.offset_ns - -1000), offset.uncertainty_ns);
}

TEST(ClockOffsetTest, TheShortestRoundTripCounts) {
  const ClockSample samples[] = {{0, 5000, 5000, 900}, {1000, 5050, 5050, 1100}, {0, 0, 0, 400}};
  const ClockOffset offset = EstimateOffset(samples);
  EXPECT_EQ(offset.round_trip_ns, 100);
  EXPECT_EQ(offset.offset_ns, -4000);
}

TEST(CollectTest, EventsAreNamedByTheReplysOwnTableAndMovedToOurClock) {
  DaemonTrace daemon{.address = "h:1", .clock = {.offset_ns = -1000}};
  daemon.reply.set_daemon("prefilld");
  v1::TraceEventKind& kind = *daemon.reply.add_kinds();
  kind.set_name("layer");
  kind.set_track("prefill layers");
  kind.add_args("layer");
  kind.add_args("");
  v1::RequestTrace& trace = *daemon.reply.add_traces();
  trace.set_begun_ns(5000);
  v1::TraceEvent& event = *trace.add_events();
  event.set_begin_ns(20);
  event.set_duration_ns(3);
  event.add_args(7);
  event.add_args(8);
  trace.add_events()->set_kind(1);  // a kind that there is not
  daemon.reply.add_traces();
  const auto processes = ToProcesses(daemon);
  ASSERT_EQ(processes.size(), 2u);
  EXPECT_EQ(processes[0].name, "prefilld h:1");
  EXPECT_EQ(processes[1].name, "prefilld h:1 (2)");
  ASSERT_EQ(processes[0].events.size(), 1u);
  EXPECT_EQ(processes[0].events[0].name, "layer");
  EXPECT_EQ(processes[0].events[0].begin_ns, 4020);
  EXPECT_THAT(processes[0].events[0].args,
              ::testing::ElementsAre(std::pair<std::string, int64_t>("layer", 7)));
}

TEST(CollectTest, PrefillInstancesAreThoseThatWereAskedEachOnce) {
  DaemonTrace daemon;
  for (int i = 0; i < 2; ++i) {
    auto& notes = *daemon.reply.add_traces()->mutable_notes();
    notes["prefill_1"] = "a:1";
    notes["prefill_2"] = "b:2";
    notes["prefill_4"] = "not asked";
  }
  EXPECT_THAT(PrefillsOf(daemon), ::testing::ElementsAre("a:1", "b:2"));
}

}  // namespace
}  // namespace smartgen::tools::trace_view
