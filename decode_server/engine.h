// Runs generations: admission by KV room, remote or local prefill, continuous batching,
// pre-emption, fallback. One thread (Run) owns the executor and all requests.
//
// A step is: take events, drop what was cancelled, admit, look after transfers, go on with steps
// that waited for KV, one decode step of all other streams that are ready, one chunk of one local
// prefill (a short chunk while others run or wait, so that they do not stall).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mailbox.h"
#include "common/base/mutex.h"
#include "common/base/watchdog.h"
#include "common/executor/executor.h"
#include "common/kv/pool.h"
#include "common/kv/prefix_cache.h"
#include "common/metrics/metrics.h"
#include "common/selector/selector_set.h"
#include "decode_server/placement.h"
#include "decode_server/remote_prefill.h"
#include "decode_server/request.h"
#include "decode_server/step_times.h"

namespace smartgen::decode_server {

class DecodeEngine {
 public:
  struct Options {
    int max_batch = 64;             // requests that run (hold KV) at once
    int max_waiting = 256;          // beyond: ResourceExhausted
    int max_prefill_tokens = 2048;  // chunk of a local prefill when nobody else is here
    int local_chunk_tokens = 256;   // and while others run or wait
    int64_t local_below_tokens =
        0;                       // kAuto: prompts with fewer tokens to compute are prefilled here
    int max_attempts = 3;        // prefill instances tried for a request
    bool local_fallback = true;  // then it is prefilled here; false: it ends with Unavailable
    base::Duration prefill_timeout =
        std::chrono::seconds(120);  // for token 1 from a prefill instance
    base::Duration transfer_timeout = std::chrono::seconds(60);  // for the KV after token 1
    base::Duration stall = std::chrono::milliseconds(1000);      // no byte for this long: ask again
    int max_fetches = 3;  // asked in vain so often: stalled for good
    base::Duration watchdog = std::chrono::seconds(60);
  };
  struct Parts {
    executor::Executor* executor;
    kv::KvPool* pool;
    kv::PrefixCache* prefix_cache;
    PrefillDirectory* directory;
    const base::Clock* clock;
    metrics::Metrics* metrics;
    selector::SelectorSet* selectors;
    transfer::CostModel* costs = nullptr;  // of a calibration
  };
  struct Load {
    int64_t waiting = 0;
    int64_t running = 0;
  };

  // With `start_thread` it runs by itself; otherwise a test calls Step.
  DecodeEngine(Options options, Parts parts, bool start_thread = true);
  ~DecodeEngine();
  // Fails what is left with Unavailable and stops the thread. Idempotent; later calls are refused.
  // The directory's attempts may outlive this.
  void Stop();

  // InvalidArgument (ids, lengths, parameters), OutOfRange (more KV than the pool has),
  // ResourceExhausted (queue full), Unavailable (draining). After OK the listener hears of the
  // request.
  absl::StatusOr<std::shared_ptr<Request>> Submit(GenerateSpec spec,
                                                  std::shared_ptr<GenerateListener> listener);
  void Cancel(const std::shared_ptr<Request>& request, const absl::Status& reason);
  // Ends everything with `reason` (the drain's end).
  void CancelAll(const absl::Status& reason);

  void RefuseNew() { refuse_new_.store(true); }
  Load load() const;
  bool stuck() const { return watchdog_.Stuck(); }
  void CollectMetrics();
  // The longest sequence that can be: the layout's capacity, or what the pool holds if that is
  // less.
  int64_t max_tokens() const { return max_tokens_; }

  // One step; false if there was nothing to compute.
  bool Step();

 private:
  struct Hot;
  using RequestPtr = std::shared_ptr<Request>;
  static constexpr base::TimePoint kEndOfTime{INT64_MAX};

  absl::Status CheckSpec(const GenerateSpec& spec) const;
  void Run();
  void Sweep();
  // engine_admission.cc
  void Admit();
  bool ReserveRoom(Request& request);
  void BeginPrefill(const RequestPtr& request);
  // Mode auto: the calibration says that the second token comes sooner without a prefill instance.
  bool SoonerHere(const Request& request) const;
  void Preempt(const RequestPtr& request);
  // Room for the token whose KV the next step writes. False: no step now, or pre-empted.
  bool GrowOrPreempt(const RequestPtr& request);
  // engine_remote.cc
  void TryRemote(const RequestPtr& request);
  // What mode auto is with this instance.
  Mode AutoMode(const Request& request, const std::string& address) const;
  absl::Status StartAttempt(const RequestPtr& request, const std::string& address);
  AttemptEvents MakeEvents(const RequestPtr& request);
  void EndAttempt(Request& request);
  void AttemptFailed(const RequestPtr& request, Fallback reason, const absl::Status& status);
  void CountFallback(Request& request, Fallback reason, std::string_view detail);
  void OnToken(const RequestPtr& request, const sampling::SampledToken& token);
  void OnDone(const RequestPtr& request, bool transfer, double prefill_seconds);
  void OnComplete(const RequestPtr& request);
  // All KV that the request needs is here; the first time counts.
  void NoteAllLocal(Request& request);
  void WatchAttempts();
  // A transfer that got no byte for this many stall intervals is stalled even where the prefill
  // side has not handed out everything yet, or other transfers of the pairing move (it may queue
  // behind them).
  static constexpr int kPatience = 10;
  void WatchTransfer(const RequestPtr& request, base::TimePoint now);
  // For steps that fetch what they need: of the rest, what was lost is asked for, or it would never
  // be all here. That it does not come fails nothing.
  void WatchRest(const RequestPtr& request, base::TimePoint now);
  // Notes what has come; true if nothing has for so long that it is to be asked for.
  bool Stalled(Request& request, base::TimePoint now);
  void AskForMissing(Request& request, base::TimePoint now);
  void EnterDecoding(const RequestPtr& request);
  // engine_handover.cc
  void EnterHandover(const RequestPtr& request);
  // How many of the first layers have all KV up to the request's newest token.
  int LocalLayers(Request& request);
  void SendStep(const RequestPtr& request);
  void OnReply(const RequestPtr& request, uint64_t step, int layer,
               std::span<const std::byte> bytes);
  void OnDeferred(const RequestPtr& request);
  void WatchHandover(const RequestPtr& request, base::TimePoint now);
  void FetchBorn(const RequestPtr& request);
  // From steps by selection to steps handed over.
  void ReturnToHandover(const RequestPtr& request);
  // engine_choice.cc
  // KV of the prompt that has not come.
  double MissingBytes(const Request& request, const PrefillAttempt::Progress& progress) const;
  // The way of a handed-over step there and back.
  double SplitTrip(const transfer::LinkEstimate& link) const;
  // What is expected of the next step if layers from `from` on are handed over.
  transfer::StepOutlook LookAhead(const Request& request, int from) const;
  // How a step is made that selects and whose metadata is here (it counts what was chosen when it
  // is made; a wait when it begins). `owed_bytes`: KV of tokens made there that must come first.
  transfer::StepKind ChooseSelectingStep(Request& request, int64_t owed_bytes);
  // Full attention, the first `layers` all here: kSplit or kWait.
  transfer::StepKind ChooseExactStep(Request& request, int layers);
  // Mode exact: queries are shipped, instead of layers handed over, from the first step to the
  // last.
  bool ShipsQueries(const Request& request) const;
  // The choice by cost is not ruled out by mode or options.
  bool MayChoose(const Request& request) const;
  // The soonest, but no wait that has taken too long.
  transfer::StepKind WaitsOn(Request& request, const transfer::StepCosts& costs);
  // The next step is waited for, at most so long; if it is not already.
  void WaitUntil(Request& request, base::TimePoint until);
  void CountStep(Request& request, transfer::StepKind kind);
  // A step was made by fetching.
  void LearnMisses(Request& request, int64_t remote_entries);
  // engine_reading.cc
  absl::Status PrepareReading(const RequestPtr& request);
  void OnMetadata(const RequestPtr& request, int layer, int64_t begin, int64_t end, bool header,
                  std::span<const std::byte> bytes);
  // Of the prompt's tokens that travel: what is not here.
  std::vector<transfer::LayerRange> MissingMetadata(const Request& request) const;
  // Metadata is missing that cannot be made from the keys here though all that travel are: a
  // sliding window shows a part of a page.
  bool LacksMetadata(const Request& request) const;
  // Asks for metadata that does not come.
  void WatchMetadata(const RequestPtr& request, base::TimePoint now);
  // What of the metadata of tokens before the newest is here. Makes what can be made from keys that
  // are here.
  enum class MetadataState {
    kReady,
    kMissing,      // of the prompt: it is on its way
    kBornMissing,  // only of tokens that handed-over steps made: their keys are not here
  };
  MetadataState LookAtMetadata(Request& request, std::vector<transfer::LayerRange>* missing);
  // True if the request goes on as kReading, or waits a moment for keys in order to do so.
  bool LeaveHandover(const RequestPtr& request);
  void EnterReading(const RequestPtr& request);
  void GiveCredit(const RequestPtr& request);
  // Credit whose bytes do not come was spent on messages that were lost: without this it would be
  // missing for ever. `came`: of the rest, intact or not.
  void WriteOffCredit(Request& request, int64_t came, uint64_t pairing_bytes);
  // Streams that may have to wait make their steps in cohorts of their own.
  struct Cohort {
    struct Member {
      RequestPtr request;
      // Kept as long as the step may touch them, whatever becomes of the request.
      std::shared_ptr<kv::KvSequence> sequence;
      std::shared_ptr<Request::Reading> reading;
      int64_t length = 0;
    };
    std::vector<Member> members;
    std::vector<float> logits;
    std::unique_ptr<executor::StepRun> run;
    base::TimePoint waiting_since{};  // zero: it has not waited
  };
  // False if the step is made by handing it over, or later.
  bool GoesOnReading(const RequestPtr& request);
  void StartCohorts();
  void StartCohort(std::span<const RequestPtr> ready);
  bool AdvanceCohorts();
  void FinishCohort(Cohort& cohort, const absl::Status& status);
  // The step that a request is in will never end, or its pages are wanted at once: it is dropped,
  // and the others of its cohort make theirs again.
  void DissolveCohortOf(const Request& request);
  // Bytes that steps asked of an instance and that have not come.
  std::shared_ptr<int64_t> OnDemandOf(const std::string& address);
  // engine.cc
  void StartLocal(const RequestPtr& request);
  void RunLocalChunk();
  absl::Status ComputeChunk(Request& request, int64_t length, std::span<float> logits);
  // What a step does for a request.
  enum class Part { kWhole, kFirstLayers, kOutput };
  struct Share {
    RequestPtr request;
    Part part = Part::kWhole;
  };
  bool RunDecodeStep();
  std::vector<Share> CollectBatch();
  // Moves a request in handover on; nothing if it waits for its answer or needs nothing here.
  std::optional<Share> ShareOfHandover(const RequestPtr& request);
  executor::DecodeSlot MakeSlot(const Share& share, std::span<float> logits);
  absl::Status RunSlots(std::span<const executor::DecodeSlot> slots);
  void LearnStep(std::span<const executor::DecodeSlot> slots, double seconds);
  void FinishShare(const Share& share, const absl::Status& status, std::span<float> logits);
  // request_trace.cc
  static void TraceStep(std::span<const Share> batch, base::TimePoint begin);
  // False if the request has ended.
  bool SampleAndDeliver(const RequestPtr& request, std::span<float> logits);
  bool Deliver(const RequestPtr& request, const sampling::SampledToken& token);
  void Finish(const RequestPtr& request, FinishReason reason);
  void Fail(const RequestPtr& request, const absl::Status& status);
  void CloseRequest(const RequestPtr& request);
  void UpdateLoad();

  const Options options_;
  const Parts parts_;
  const int64_t max_tokens_;
  std::unique_ptr<Hot> hot_;
  base::Watchdog watchdog_;
  std::shared_ptr<base::Mailbox> mailbox_;  // events of attempts hold it as well
  std::atomic<bool> stop_{false};
  std::atomic<bool> refuse_new_{false};
  std::atomic<int64_t> used_pages_{0};

  mutable base::Mutex mutex_;
  Load load_ ABSL_GUARDED_BY(mutex_);
  int64_t submitted_ ABSL_GUARDED_BY(mutex_) = 0;  // accepted, not yet seen by the engine's thread
  uint64_t serial_ ABSL_GUARDED_BY(mutex_) = 0;

  // Engine's thread only.
  std::deque<RequestPtr> waiting_;
  std::vector<RequestPtr> active_;  // in order of arrival
  std::deque<RequestPtr> local_;    // kLocalPrefill, taking turns
  std::vector<std::shared_ptr<Cohort>> cohorts_;
  std::map<std::string, std::weak_ptr<int64_t>> on_demand_;  // by instance, see OnDemandOf
  std::map<std::string, base::TimePoint> deferred_at_;  // by instance: it had no time for steps
  // Nobody is pre-empted before, or until more pages are free: those of one that was come when its
  // payloads under way have ended.
  base::TimePoint drains_until_{};
  int64_t drains_from_ = 0;    // free pages
  std::vector<float> logits_;  // max_batch rows
  Placement placement_;
  StepTimes step_times_;

  std::thread thread_;
};

}  // namespace smartgen::decode_server
