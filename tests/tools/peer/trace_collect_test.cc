// The Trace service and who asks it, over gRPC.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rpc/server.h"
#include "common/rpc/trace_service.h"
#include "tools/trace/collect.h"

namespace smartgen::tools::trace_view {
namespace {

using ::testing::HasSubstr;

class TraceCollectTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = rpc::Server::Start({}, {{"smartgen.v1.Trace", &service_}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  absl::StatusOr<DaemonTrace> Ask(const std::string& id) {
    CollectOptions options;
    options.patience = std::chrono::milliseconds(1);
    return Collect(server_->address(), id, options);
  }
  trace::TracePtr Begin() {
    trace::TracePtr trace = store_.Begin("cmpl-1");
    store_.Keep(trace);
    return trace;
  }

  trace::TraceStore store_{{.max_requests = 2, .max_events = 8}, base::Clock::Real()};
  rpc::TraceService service_{&store_, base::Clock::Real(), "decoded", [] { return "h:1"; }};
  std::unique_ptr<rpc::Server> server_;
};

TEST_F(TraceCollectTest, WhatWasRecordedComesWithItsNamesOnOurClock) {
  const base::TimePoint before = base::Clock::Real()->Now();
  const trace::TracePtr trace = Begin();
  trace->Mark(trace::Kind::kToken, {1, 40});
  trace->Note("mode", "exact");
  trace->Finish(trace::Kind::kRequest);
  const base::TimePoint after = base::Clock::Real()->Now();
  const auto daemon = Ask("cmpl-1");
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  ASSERT_EQ(daemon->reply.traces_size(), 1);
  EXPECT_TRUE(daemon->reply.traces(0).finished());
  const auto processes = ToProcesses(*daemon);
  ASSERT_EQ(processes[0].events.size(), 2u);
  const ViewEvent& token = processes[0].events[0];
  EXPECT_EQ(token.name, "token");
  EXPECT_EQ(token.track, "request");
  EXPECT_TRUE(token.instant);
  EXPECT_THAT(token.args, ::testing::ElementsAre(std::pair<std::string, int64_t>("number", 1),
                                                 std::pair<std::string, int64_t>("position", 40)));
  // One clock here, so the estimate must hold the truth.
  EXPECT_LE(std::abs(daemon->clock.offset_ns), daemon->clock.uncertainty_ns);
  EXPECT_GE(token.begin_ns, before.ns - daemon->clock.uncertainty_ns);
  EXPECT_LE(token.begin_ns, after.ns + daemon->clock.uncertainty_ns);
  const Json json = DaemonJson(*daemon);
  EXPECT_EQ(json["daemon"], "decoded");
  EXPECT_EQ(json["traces"][0]["notes"]["mode"], "exact");
  EXPECT_GE(json["clock"]["uncertainty_us"].get<double>(), 0);
}

TEST_F(TraceCollectTest, DroppedEventsAreToldByName) {
  const trace::TracePtr trace = Begin();
  for (int i = 0; i < 10; ++i) trace->Mark(trace::Kind::kToken);
  trace->Finish(trace::Kind::kRequest);
  const auto daemon = Ask("cmpl-1");
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const Json traces = DaemonJson(*daemon)["traces"];
  EXPECT_EQ(traces[0]["events"], 8);
  EXPECT_EQ(traces[0]["dropped"], 3);
  EXPECT_EQ(traces[0]["dropped_by_name"]["token"], 2);
  EXPECT_EQ(traces[0]["dropped_by_name"]["request"], 1);
}

TEST_F(TraceCollectTest, ARequestThatGoesOnIsReadAsFarAsItIs) {
  Begin()->Enter(trace::Kind::kWaiting);
  const auto daemon = Ask("cmpl-1");
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  EXPECT_FALSE(daemon->reply.traces(0).finished());
  EXPECT_EQ(daemon->reply.traces(0).events_size(), 1);
}

TEST_F(TraceCollectTest, AnUnknownRequestIsNotFoundWithWhatToDo) {
  const auto daemon = Ask("cmpl-none");
  EXPECT_EQ(daemon.status().code(), absl::StatusCode::kNotFound);
  const std::string message(daemon.status().message());
  EXPECT_THAT(message, HasSubstr(server_->address()));
  EXPECT_THAT(message, HasSubstr("cmpl-none"));
  EXPECT_THAT(message, HasSubstr("\"smartgen\": {\"trace\": true}"));
}

TEST_F(TraceCollectTest, AnIdThatIsNoneOrTooLongIsRefused) {
  EXPECT_EQ(Ask("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Ask(std::string(257, 'x')).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TraceCollectTest, ADaemonThatIsNotThereIsAnErrorWithItsAddress) {
  const std::string address = server_->address();
  server_.reset();
  const auto daemon = Collect(address, "cmpl-1", {});
  EXPECT_EQ(daemon.status().code(), absl::StatusCode::kUnavailable) << daemon.status();
  EXPECT_THAT(std::string(daemon.status().message()), HasSubstr(address));
}

}  // namespace
}  // namespace smartgen::tools::trace_view
