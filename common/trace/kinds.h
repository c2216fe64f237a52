// The catalogue of events that a trace can hold: every name and track that a viewer shows stands
// here, in one table.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace smartgen::trace {

inline constexpr int kMaxArgs = 4;

enum class Kind : uint8_t {
  // Track "request" of decoded: the whole, the states that it went through, and moments.
  kRequest,
  kWaiting,
  kRemotePrefill,
  kReceiving,
  kHandover,
  kReading,
  kLocalPrefill,
  kDecoding,
  kToken,
  kAllLocal,
  kRelease,
  kFallback,
  // Track "request" of prefilld.
  kPrompt,
  kQueued,
  kPrefill,
  kLease,
  kPlan,
  // Track "prefill layers".
  kPrefillChunk,
  kPrefillLayer,
  kLayerReady,
  // Track "decode steps".
  kStepLocal,
  kStepHandover,
  kStepReading,
  kStepShipped,
  kStepFirstLayers,
  kStepOutput,
  // Track "on-demand fetch".
  kFetch,
  // Track "handover": as the decode side sees it, and as the prefill side computes it.
  kSplitAway,
  kAttendAway,
  kSplitComputed,
  kAttendComputed,
  // Track "speculative".
  kCredit,
  // Messages, a track for each way: taken by the channel until handed to the network ...
  kSentFull,
  kSentProactive,
  kSentOnDemand,
  kSentSpeculative,
  kSentMetadata,
  kSentHandover,
  // ... and from the head's arrival until verified and placed.
  kReceivedFull,
  kReceivedProactive,
  kReceivedOnDemand,
  kReceivedSpeculative,
  kReceivedMetadata,
  kReceivedHandover,
};
inline constexpr int kNumKinds = static_cast<int>(Kind::kReceivedHandover) + 1;

struct KindInfo {
  Kind kind;
  std::string_view name;      // of the event
  std::string_view category;  // of messages: the path's name, as in path_bytes
  std::string_view track;
  bool instant = false;  // a moment: no duration
  // There may be very many: such events leave room in a full trace for the others.
  bool bulk = false;
  std::array<std::string_view, kMaxArgs> args;  // names of the arguments; "": none
};

const KindInfo& Describe(Kind kind);

}  // namespace smartgen::trace
