#include "common/trace/kinds.h"

namespace smartgen::trace {
namespace {

constexpr std::string_view kRequestTrack = "request";
constexpr std::string_view kLayerTrack = "prefill layers";
constexpr std::string_view kStepTrack = "decode steps";
constexpr std::string_view kFetchTrack = "on-demand fetch";
constexpr std::string_view kHandoverTrack = "handover";
constexpr std::array<std::string_view, kMaxArgs> kMessage = {"layer", "block", "tokens", "bytes"};
constexpr std::array<std::string_view, kMaxArgs> kAnswer = {"layer", "position", "", "bytes"};
constexpr std::array<std::string_view, kMaxArgs> kNothing = {};

constexpr KindInfo State(Kind kind, std::string_view name) {
  return {kind, name, "state", kRequestTrack, false, false, kNothing};
}
constexpr KindInfo Moment(Kind kind, std::string_view name,
                          std::array<std::string_view, kMaxArgs> args) {
  return {kind, name, "moment", kRequestTrack, true, false, args};
}
constexpr KindInfo Step(Kind kind, std::string_view name,
                        std::array<std::string_view, kMaxArgs> args) {
  return {kind, name, "decode", kStepTrack, false, true, args};
}
constexpr KindInfo Message(Kind kind, std::string_view path, std::string_view track,
                           std::array<std::string_view, kMaxArgs> args = kMessage) {
  return {kind, track.substr(0, track.find(':')), path, track, false, true, args};
}

constexpr std::array<KindInfo, kNumKinds> kTable = {{
    State(Kind::kRequest, "request"),
    State(Kind::kWaiting, "waiting for room"),
    State(Kind::kRemotePrefill, "waiting for token 1"),
    State(Kind::kReceiving, "receiving KV"),
    State(Kind::kHandover, "decoding by handover"),
    State(Kind::kReading, "decoding while KV comes"),
    State(Kind::kLocalPrefill, "prefill here"),
    State(Kind::kDecoding, "decoding"),
    Moment(Kind::kToken, "token", {"number", "position", "", ""}),
    Moment(Kind::kAllLocal, "all KV is here", kNothing),
    Moment(Kind::kRelease, "release", {"", "", "", "bytes"}),
    Moment(Kind::kFallback, "fallback", {"reason", "", "", ""}),
    State(Kind::kPrompt, "prompt"),
    State(Kind::kQueued, "queued"),
    State(Kind::kPrefill, "prefill"),
    State(Kind::kLease, "KV held for the decode side"),
    Moment(Kind::kPlan, "plan", {"budget_blocks", "pushed_blocks", "total_blocks", ""}),
    {Kind::kPrefillChunk,
     "chunk",
     "prefill",
     kLayerTrack,
     false,
     false,
     {"first_token", "tokens", "", ""}},
    {Kind::kPrefillLayer,
     "layer",
     "prefill",
     kLayerTrack,
     false,
     true,
     {"layer", "first_token", "tokens", ""}},
    {Kind::kLayerReady, "KV ready", "prefill", kLayerTrack, true, true, {"layer", "", "", ""}},
    Step(Kind::kStepLocal, "step: all here", {"position", "batch", "", ""}),
    Step(Kind::kStepHandover, "step: handed over", {"position", "from_layer", "", ""}),
    Step(Kind::kStepReading, "step: reading", {"position", "selected", "remote", ""}),
    Step(Kind::kStepShipped, "step: queries shipped", {"position", "", "", ""}),
    Step(Kind::kStepFirstLayers, "first layers", {"position", "layers", "batch", ""}),
    Step(Kind::kStepOutput, "output", {"position", "batch", "", ""}),
    {Kind::kFetch,
     "fetch",
     "ondemand",
     kFetchTrack,
     false,
     true,
     {"layer", "ranges", "entries", "retries"}},
    {Kind::kSplitAway,
     "layers away",
     "handover",
     kHandoverTrack,
     false,
     true,
     {"position", "from_layer", "retries", "bytes"}},
    {Kind::kAttendAway,
     "attend away",
     "handover",
     kHandoverTrack,
     false,
     true,
     {"position", "layer", "tokens", "bytes"}},
    {Kind::kSplitComputed,
     "layers computed",
     "handover",
     kHandoverTrack,
     false,
     true,
     {"position", "from_layer", "batch", ""}},
    {Kind::kAttendComputed,
     "attend computed",
     "handover",
     kHandoverTrack,
     false,
     true,
     {"position", "layer", "tokens", ""}},
    {Kind::kCredit, "credit", "speculative", "speculative", true, true, {"", "", "", "bytes"}},
    Message(Kind::kSentFull, "full", "sent: push"),
    Message(Kind::kSentProactive, "proactive", "sent: push"),
    Message(Kind::kSentOnDemand, "ondemand", "sent: on demand"),
    Message(Kind::kSentSpeculative, "speculative", "sent: speculative"),
    Message(Kind::kSentMetadata, "metadata", "sent: metadata"),
    Message(Kind::kSentHandover, "handover", "sent: answers", kAnswer),
    Message(Kind::kReceivedFull, "full", "received: push"),
    Message(Kind::kReceivedProactive, "proactive", "received: push"),
    Message(Kind::kReceivedOnDemand, "ondemand", "received: on demand"),
    Message(Kind::kReceivedSpeculative, "speculative", "received: speculative"),
    Message(Kind::kReceivedMetadata, "metadata", "received: metadata"),
    Message(Kind::kReceivedHandover, "handover", "received: answers", kAnswer),
}};

constexpr bool InOrder() {
  for (int i = 0; i < kNumKinds; ++i) {
    if (static_cast<int>(kTable[static_cast<size_t>(i)].kind) != i) return false;
  }
  return true;
}
static_assert(InOrder(), "the table has the enum's order");

}  // namespace

const KindInfo& Describe(Kind kind) { return kTable[static_cast<size_t>(kind)]; }

}  // namespace smartgen::trace
