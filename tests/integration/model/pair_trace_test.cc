// Traces of requests between real daemons in one process, over a slow link, so that every path is
// taken.
#include <map>
#include <set>

#include "tests/integration/model/pair_model_fixture.h"
#include "tools/trace/chrome.h"
#include "tools/trace/collect.h"

namespace smartgen::integration {
namespace {

using tools::trace_view::Json;
using tools::trace_view::Process;

class PairTraceTest : public SlowPairModelTest {
 protected:
  struct Traced {
    Result result;
    Process decode;
    Process prefill;
    Json decode_json;
  };

  static v1::GenerateRequest Named(v1::GenerateRequest request, const std::string& id) {
    request.set_request_id(id);
    request.set_trace(true);
    return request;
  }

  static tools::trace_view::DaemonTrace Fetch(const std::string& address, const std::string& id) {
    auto trace = tools::trace_view::Collect(address, id, {});
    EXPECT_TRUE(trace.ok()) << trace.status();
    return trace.ok() ? *std::move(trace) : tools::trace_view::DaemonTrace{};
  }

  Traced RunTraced(v1::GenerateRequest request, const std::string& id) {
    Traced out{.result = Run(Named(std::move(request), id))};
    const auto decode = Fetch(decode_->address(), id);
    const auto addresses = tools::trace_view::PrefillsOf(decode);
    EXPECT_EQ(addresses, std::vector<std::string>{prefill_->address()});
    const auto prefill = Fetch(prefill_->address(), id);
    const auto of_decode = ToProcesses(decode);
    const auto of_prefill = ToProcesses(prefill);
    EXPECT_EQ(of_decode.size(), 1u);
    EXPECT_EQ(of_prefill.size(), 1u);
    if (!of_decode.empty()) out.decode = of_decode[0];
    if (!of_prefill.empty()) out.prefill = of_prefill[0];
    out.decode_json = DaemonJson(decode);
    EXPECT_EQ(out.decode_json["traces"][0]["dropped"], 0) << out.decode_json.dump();
    EXPECT_TRUE(out.decode_json["traces"][0]["finished"]);
    EXPECT_TRUE(DaemonJson(prefill)["traces"][0]["finished"]);
    return out;
  }

  static std::map<std::string, int64_t> Counts(const Process& process) {
    std::map<std::string, int64_t> counts;
    for (const auto& event : process.events) ++counts[event.track + "/" + event.name];
    return counts;
  }

  // Of messages on tracks that begin so, by path.
  static std::map<std::string, uint64_t> Bytes(const Process& process, const std::string& track) {
    std::map<std::string, uint64_t> bytes;
    for (const auto& event : process.events) {
      if (!event.track.starts_with(track)) continue;
      for (const auto& [name, value] : event.args) {
        if (name == "bytes") bytes[event.category] += static_cast<uint64_t>(value);
      }
    }
    return bytes;
  }

  static void ExpectBytesOfResponse(const Traced& traced) {
    const auto& path_bytes = traced.result.stats.path_bytes();
    EXPECT_EQ(Bytes(traced.decode, "received: "),
              (std::map<std::string, uint64_t>(path_bytes.begin(), path_bytes.end())));
  }

  static void ExpectAll(const std::map<std::string, int64_t>& counts,
                        const std::set<std::string>& names) {
    for (const std::string& name : names) {
      const auto it = counts.find(name);
      EXPECT_TRUE(it != counts.end() && it->second > 0) << name;
    }
  }
};

TEST_F(PairTraceTest, ModeSmartgenShowsPrefillEveryPathAndTheSteps) {
  auto request = Request(900, v1::MODE_SMARTGEN);
  request.set_max_tokens(24);
  request.mutable_transfer()->set_selector("quest");
  request.mutable_transfer()->set_selection_budget(0.2);
  // On this link steps are sooner handed over than fetched for.
  request.mutable_transfer()->set_handover(v1::TransferOptions::HANDOVER_NONE);
  const Traced traced = RunTraced(request, "cmpl-smartgen");
  ExpectBytesOfResponse(traced);

  const auto prefill = Counts(traced.prefill);
  // 900 tokens in chunks of 256: four, each of 30 layers.
  EXPECT_EQ(prefill.at("prefill layers/chunk"), 4);
  EXPECT_EQ(prefill.at("prefill layers/layer"), 4 * 30);
  EXPECT_EQ(prefill.at("prefill layers/KV ready"), 4 * 30);
  ExpectAll(prefill, {"request/prompt", "request/queued", "request/prefill",
                      "request/KV held for the decode side", "request/plan", "request/token",
                      "sent: push/sent", "sent: on demand/sent", "sent: speculative/sent",
                      "sent: metadata/sent"});
  const auto decode = Counts(traced.decode);
  EXPECT_EQ(decode.at("request/token"), 24);
  EXPECT_EQ(decode.at("request/request"), 1);
  ExpectAll(decode,
            {"request/waiting for token 1", "request/decoding while KV comes", "request/release",
             "decode steps/step: reading", "on-demand fetch/fetch", "speculative/credit",
             "received: push/received", "received: on demand/received",
             "received: speculative/received", "received: metadata/received"});
  // Token 1 is the prefill side's; a step for each of the others.
  int64_t steps = 0;
  for (const auto& [name, count] : decode) {
    if (name.starts_with("decode steps/step: ")) steps += count;
  }
  EXPECT_EQ(steps, 23);
}

TEST_F(PairTraceTest, ModeExactShowsWhatWasHandedOverOnBothSides) {
  const Traced traced = RunTraced(Request(1500, v1::MODE_EXACT), "cmpl-exact");
  ExpectBytesOfResponse(traced);
  const auto decode = Counts(traced.decode);
  const auto prefill = Counts(traced.prefill);
  const int64_t handed_over = traced.result.stats.handover_steps();
  EXPECT_GT(handed_over, 0);
  EXPECT_EQ(decode.at("decode steps/step: handed over"), handed_over);
  EXPECT_EQ(decode.at("decode steps/output"), handed_over);
  EXPECT_EQ(decode.at("handover/layers away"), handed_over);
  // More where a step was asked for twice.
  EXPECT_GE(prefill.at("handover/layers computed"), handed_over);
  EXPECT_GE(prefill.at("sent: answers/sent"), handed_over);

  auto attend = Request(1500, v1::MODE_EXACT);
  attend.mutable_transfer()->set_handover(v1::TransferOptions::HANDOVER_ATTEND);
  const Traced shipped = RunTraced(attend, "cmpl-attend");
  const auto steps = Counts(shipped.decode).at("decode steps/step: queries shipped");
  EXPECT_EQ(steps, shipped.result.stats.handover_steps());
  EXPECT_GT(Counts(shipped.decode).at("handover/attend away"), steps);
  EXPECT_GE(Counts(shipped.prefill).at("handover/attend computed"),
            Counts(shipped.decode).at("handover/attend away"));
}

// The two daemons' clocks are one here, so that causes must stand before their effects.
TEST_F(PairTraceTest, TheDaemonsStandRightToEachOther) {
  const Traced traced = RunTraced(Request(300, v1::MODE_EXACT), "cmpl-order");
  const auto span_of = [](const Process& process, const std::string& name) {
    for (const auto& event : process.events) {
      if (event.name == name) {
        return std::pair(event.begin_ns, event.begin_ns + event.duration_ns);
      }
    }
    ADD_FAILURE() << name;
    return std::pair<int64_t, int64_t>();
  };
  // Loopback: a round trip is far below this.
  constexpr int64_t kSlackNs = 20'000'000;
  const auto waiting = span_of(traced.decode, "waiting for token 1");
  const auto prefill = span_of(traced.prefill, "prefill");
  EXPECT_GE(prefill.first, waiting.first - kSlackNs);
  EXPECT_LE(prefill.second, waiting.second + kSlackNs);
  const auto request = span_of(traced.decode, "request");
  for (const auto& event : traced.decode.events) {
    EXPECT_GE(event.begin_ns, request.first) << event.name;
    EXPECT_LE(event.begin_ns + event.duration_ns, request.second + kSlackNs) << event.name;
  }
}

TEST_F(PairTraceTest, ARequestThatDoesNotAskIsNotTraced) {
  auto request = Request(40, v1::MODE_EXACT);
  request.set_request_id("cmpl-untraced");
  Run(request);
  for (const std::string& address : {decode_->address(), prefill_->address()}) {
    EXPECT_EQ(tools::trace_view::Collect(address, "cmpl-untraced", {}).status().code(),
              absl::StatusCode::kNotFound);
  }
}

}  // namespace
}  // namespace smartgen::integration
