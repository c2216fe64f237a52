// Steps that read a selection of the KV, or attend to KV where it is: cohorts that may have to
// wait, so that streams whose KV is all here never do (smartgen.md, section 3).
#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/log.h"
#include "decode_server/engine.h"
#include "decode_server/engine_metrics.h"
#include "decode_server/request_trace.h"

namespace smartgen::decode_server {
namespace {

uint64_t OnDemandBytes(const PrefillAttempt::Progress& progress) {
  const auto it = progress.path_bytes.find(transfer::Path::kOnDemand);
  return it == progress.path_bytes.end() ? 0 : it->second;
}

}  // namespace

absl::Status DecodeEngine::PrepareReading(const RequestPtr& request) {
  auto reading = std::make_shared<Request::Reading>();
  if (transfer::Selects(request->stats.mode)) {
    ASSIGN_OR_RETURN(reading->selector,
                     parts_.selectors->Get(request->spec.transfer.selector,
                                           request->spec.transfer.selection_budget));
    reading->metadata = std::make_unique<selector::MetadataStore>(
        &reading->selector->metadata(), parts_.pool->layout().token_capacity);
    reading->read.selector = reading->selector.get();
    reading->read.metadata = reading->metadata.get();
    reading->read.prefetch = request->spec.transfer.prefetch;
  }
  request->reading = std::move(reading);
  return absl::OkStatus();
}

void DecodeEngine::OnMetadata(const RequestPtr& request, int layer, int64_t begin, int64_t end,
                              bool header, std::span<const std::byte> bytes) {
  if (request->reading == nullptr || request->reading->metadata == nullptr) return;
  selector::MetadataStore& store = *request->reading->metadata;
  const int layers = store.layout().num_layers();
  absl::Status status;
  if (layer < 0 || layer >= layers) {
    status = base::OutOfRange("metadata of layer {}: there are {}", layer, layers);
  } else {
    status = header ? store.PutHeader(layer, bytes) : store.Put(layer, begin, end, bytes);
  }
  if (!status.ok()) {
    AttemptFailed(request, Fallback::kPrefillError, base::Annotate(status, "selection metadata"));
    return;
  }
  request->remote.metadata_at = parts_.clock->Now();
  request->remote.metadata_asks = 0;
}

std::vector<transfer::LayerRange> DecodeEngine::MissingMetadata(const Request& request) const {
  const selector::MetadataStore& store = *request.reading->metadata;
  const int64_t begin = request.sequence->prefix_tokens();
  const int64_t end = request.remote.prompt_end;
  std::vector<transfer::LayerRange> missing;
  for (int layer = 0; layer < store.layout().num_layers(); ++layer) {
    if (store.layout().UnitBytes(layer) == 0) continue;
    const bool header = store.layout().HeaderBytes(layer) > 0 && store.Header(layer).empty();
    const int64_t first = header ? begin : store.FirstMissing(layer, begin, end);
    if (first < end) missing.push_back({layer, first, end});
  }
  return missing;
}

bool DecodeEngine::LacksMetadata(const Request& request) const {
  if (request.reading == nullptr || request.reading->metadata == nullptr) return false;
  const auto& layers = parts_.pool->layout().layers;
  const bool windows =
      std::any_of(layers.begin(), layers.end(), [](const auto& layer) { return layer.window > 0; });
  return windows && !MissingMetadata(request).empty();
}

void DecodeEngine::WatchMetadata(const RequestPtr& request, base::TimePoint now) {
  auto& remote = request->remote;
  if (request->reading == nullptr || request->reading->metadata == nullptr) return;
  const base::Duration patience = options_.stall * (int64_t{1} << remote.metadata_asks);
  if (now - remote.metadata_at <= patience) return;
  const std::vector<transfer::LayerRange> missing = MissingMetadata(*request);
  if (missing.empty()) return;
  // On a thin link a message takes its time, and those of other requests go before it.
  int64_t bytes = 0;
  for (const RequestPtr& other : active_) {
    if (other->remote.attempt == nullptr || other->remote.address != remote.address) continue;
    if (other->reading == nullptr || other->reading->metadata == nullptr) continue;
    const selector::MetadataLayout& layout = other->reading->metadata->layout();
    for (const transfer::LayerRange& range : MissingMetadata(*other)) {
      bytes += layout.RangeBytes(range.layer, range.begin, range.end);
    }
  }
  const double rate = remote.attempt->progress().link.bytes_per_second;
  const auto way = base::FromSeconds(rate > 0 ? static_cast<double>(bytes) / rate : 0);
  if (now - remote.metadata_at <= patience + way) return;
  if (remote.metadata_asks >= options_.max_fetches) {
    AttemptFailed(request, Fallback::kTransferStalled,
                  base::DataLoss("selection metadata of {} layers did not come though asked for {} "
                                 "times",
                                 missing.size(), remote.metadata_asks));
    return;
  }
  ++remote.metadata_asks;
  remote.metadata_at = now;
  parts_.metrics->GetCounter("fallback_total", {{"reason", "metadata_missing"}}).Add();
  SMARTGEN_LOG(warn, "decode", "selection metadata of {} layers is missing: asking {} ({} of {})",
               missing.size(), remote.address, remote.metadata_asks, options_.max_fetches);
  remote.attempt->FetchMetadata(missing);
}

DecodeEngine::MetadataState DecodeEngine::LookAtMetadata(
    Request& request, std::vector<transfer::LayerRange>* missing) {
  Request::Reading& reading = *request.reading;
  selector::MetadataStore& store = *reading.metadata;
  const int64_t position = request.length() - 1;
  const int64_t prefix = request.sequence->prefix_tokens();
  const int64_t prompt_end = request.remote.prompt_end;
  for (int layer = 0; layer < store.layout().num_layers(); ++layer) {
    if (store.layout().UnitBytes(layer) == 0) continue;
    if (store.layout().HeaderBytes(layer) > 0 && store.Header(layer).empty()) {
      return MetadataState::kMissing;
    }
    if (!store.Complete(layer, prefix, prompt_end)) return MetadataState::kMissing;
    // What this side has had all along, and tokens that were made by handed-over steps.
    const std::pair<int64_t, int64_t> own[] = {{0, prefix}, {prompt_end, position}};
    for (const auto& [begin, end] : own) {
      if (begin >= end || store.Complete(layer, begin, end)) continue;
      const int64_t until = request.sequence->FirstNotLocal(layer, begin, end);
      if (until < end) missing->push_back({layer, until, end});
      if (begin < until &&
          !reading.selector->Extend(layer, *request.sequence, begin, until, store).ok()) {
        return MetadataState::kMissing;
      }
    }
  }
  // The dense layers have no metadata, but their keys are read all the same.
  for (int layer = 0; layer < store.layout().num_layers(); ++layer) {
    if (store.layout().UnitBytes(layer) > 0 || prompt_end >= position) continue;
    const int64_t until = request.sequence->FirstNotLocal(layer, prompt_end, position);
    if (until < position) missing->push_back({layer, until, position});
  }
  return missing->empty() ? MetadataState::kReady : MetadataState::kBornMissing;
}

bool DecodeEngine::LeaveHandover(const RequestPtr& request) {
  using transfer::StepKind;
  auto& handover = request->handover;
  std::vector<transfer::LayerRange> missing;
  const MetadataState state = LookAtMetadata(*request, &missing);
  if (state == MetadataState::kMissing) {
    const bool waits = request->spec.transfer.handover == transfer::Handover::kNone;
    if (waits) WaitUntil(*request, kEndOfTime);
    return waits;
  }
  // Who has asked for keys has chosen.
  if (handover.held_since == base::TimePoint{}) {
    int64_t owed = 0;
    for (const transfer::LayerRange& range : missing) {
      owed += (range.end - range.begin) * parts_.pool->layout().TokenBytes(range.layer);
    }
    handover.owed_bytes = owed;
    switch (ChooseSelectingStep(*request, owed)) {
      case StepKind::kSplit:
      case StepKind::kAttend:
        return false;
      case StepKind::kWait:
        GiveCredit(request);
        return true;
      case StepKind::kFetch:
        break;
    }
  }
  if (state == MetadataState::kReady) {
    EnterReading(request);
    return true;
  }
  // Another handed-over step would make another token whose keys are there: this one waits instead.
  const base::TimePoint now = parts_.clock->Now();
  const PrefillAttempt::Progress progress = request->remote.attempt->progress();
  if (handover.held_since == base::TimePoint{}) {
    handover.held_since = now;
    handover.held_bytes = OnDemandBytes(progress);
    // Not as lost ranges: most were not handed out there yet, they stand behind the prompt's.
    for (const transfer::LayerRange& range : missing) {
      const kv::HeadRange all_heads{.head = -1, .begin = range.begin, .end = range.end};
      request->remote.attempt->FetchHeads(range.layer, {&all_heads, 1}, /*again=*/false);
    }
    return true;
  }
  if (OnDemandBytes(progress) != std::exchange(handover.held_bytes, OnDemandBytes(progress))) {
    handover.held_since = now;
  }
  // On a thin link what is owed takes its time.
  const double rate = progress.link.bytes_per_second;
  const double way = rate > 0 ? static_cast<double>(handover.owed_bytes) / rate : 0;
  if (now - handover.held_since <= options_.stall + base::FromSeconds(way)) return true;
  handover.held_since = {};  // they were lost: on by another step, and tried again with the next
  request->remote.attempt->FetchRanges(missing);
  return false;
}

std::shared_ptr<int64_t> DecodeEngine::OnDemandOf(const std::string& address) {
  std::erase_if(on_demand_, [](const auto& one) { return one.second.expired(); });
  std::weak_ptr<int64_t>& kept = on_demand_[address];
  std::shared_ptr<int64_t> bytes = kept.lock();
  if (bytes == nullptr) kept = bytes = std::make_shared<int64_t>(0);
  return bytes;
}

void DecodeEngine::EnterReading(const RequestPtr& request) {
  const base::TimePoint now = parts_.clock->Now();
  if (request->state() != RequestState::kHandover) request->decode_started = now;
  request->Advance(RequestState::kReading);
  Request::Reading& reading = *request->reading;
  RemoteReader::Options options;
  options.stall = options_.stall;
  options.max_retries = options_.max_fetches;
  options.parallel = request->spec.transfer.parallel;
  options.trace = request->spec.trace;
  options.asked_bytes = OnDemandOf(request->remote.address);
  reading.reader = std::make_unique<RemoteReader>(options, request->remote.attempt,
                                                  request->sequence, parts_.clock);
  reading.read.remote = reading.reader.get();
  if (reading.selector == nullptr) reading.read.ship_end = request->remote.prompt_end;
}

void DecodeEngine::GiveCredit(const RequestPtr& request) {
  const auto& options = request->spec.transfer;
  if (!options.speculation || request->stats.mode != Mode::kSmartGen) return;
  const int64_t all = transfer::TravelBytes(
      parts_.pool->layout(), request->sequence->prefix_tokens(), request->remote.prompt_end);
  const double ratio = options.speculative_ratio > 0 ? options.speculative_ratio : 1;
  // And the token that it ends in: with what it cuts off, the last step would not be enough.
  int64_t token = 0;
  for (int layer = 0; layer < parts_.pool->layout().num_layers(); ++layer) {
    token = std::max<int64_t>(token, parts_.pool->layout().TokenBytes(layer));
  }
  const int64_t per_step =
      static_cast<int64_t>(std::ceil(ratio * static_cast<double>(all))) + token;
  const PrefillAttempt::Progress progress = request->remote.attempt->progress();
  const auto it = progress.path_bytes.find(transfer::Path::kSpeculative);
  const uint64_t intact = it == progress.path_bytes.end() ? 0 : it->second;
  const auto came = static_cast<int64_t>(intact + progress.damaged_rest_bytes);
  WriteOffCredit(*request, came, progress.pairing_bytes);
  // A step's worth at a time: what the link could not carry is not added up.
  const int64_t more = per_step - (request->reading->credited - came);
  if (more <= 0) return;
  request->reading->credited += more;
  request->reading->credit_at = parts_.clock->Now();
  request->remote.attempt->Credit(more);
  trace::Mark(request->spec.trace, trace::Kind::kCredit, {0, 0, 0, more});
}

void DecodeEngine::WriteOffCredit(Request& request, int64_t came, uint64_t pairing_bytes) {
  Request::Reading& reading = *request.reading;
  auto& remote = request.remote;
  const base::TimePoint now = parts_.clock->Now();
  if (came != std::exchange(reading.came, came)) reading.credit_at = now;
  if (pairing_bytes != std::exchange(remote.pairing_bytes, pairing_bytes)) remote.pairing_at = now;
  const int64_t outstanding = reading.credited - came;
  if (outstanding <= 0) return;
  const bool quiet = now - std::max(remote.pairing_at, reading.credit_at) > options_.stall;
  if (!quiet && now - reading.credit_at <= kPatience * options_.stall) return;
  reading.credited = came;
  parts_.metrics->GetCounter("fallback_total", {{"reason", "credit_lost"}}).Add();
  SMARTGEN_LOG(warn, "decode",
               "{} bytes of the rest from {} did not come: their credit is given "
               "again",
               outstanding, request.remote.address);
}

bool DecodeEngine::GoesOnReading(const RequestPtr& request) {
  if (request->reading->selector == nullptr) {
    CountStep(*request, transfer::StepKind::kAttend);
    return true;
  }
  switch (ChooseSelectingStep(*request, 0)) {
    case transfer::StepKind::kSplit:
    case transfer::StepKind::kAttend:
      request->reading->reader.reset();
      request->reading->read.remote = nullptr;
      ReturnToHandover(request);
      return false;
    case transfer::StepKind::kWait:
      GiveCredit(request);
      return false;
    case transfer::StepKind::kFetch:
      break;
  }
  CountStep(*request, transfer::StepKind::kFetch);
  request->outlook.missing_before = MissingBytes(*request, request->remote.attempt->progress());
  return true;
}

void DecodeEngine::StartCohorts() {
  std::vector<RequestPtr> ready;
  for (const auto& request : active_) {
    if (request->state() != RequestState::kReading || request->reading->under_way) continue;
    ready.push_back(request);
  }
  std::erase_if(ready, [this](const RequestPtr& request) {
    if (request->state() != RequestState::kReading) return true;  // pre-empted by one before
    if (!request->remote.kv_complete) return !GrowOrPreempt(request);
    EnterDecoding(request);
    return true;
  });
  std::erase_if(ready, [this](const RequestPtr& request) {
    return request->state() != RequestState::kReading || !GoesOnReading(request);
  });
  const auto apart =
      std::stable_partition(ready.begin(), ready.end(),
                            [](const RequestPtr& request) { return !request->reading->alone; });
  if (apart != ready.begin()) StartCohort({ready.begin(), apart});
  for (auto it = apart; it != ready.end(); ++it) StartCohort({&*it, 1});
}

void DecodeEngine::StartCohort(std::span<const RequestPtr> ready) {
  auto cohort = std::make_shared<Cohort>();
  const auto vocab = static_cast<size_t>(parts_.executor->config().vocab_size);
  cohort->logits.resize(ready.size() * vocab);
  std::vector<executor::DecodeSlot> slots;
  for (size_t i = 0; i < ready.size(); ++i) {
    const RequestPtr& request = ready[i];
    Request::Reading& reading = *request->reading;
    reading.under_way = true;
    TraceStepBegun(*request);
    reading.read.selected_entries = reading.read.remote_entries = 0;
    reading.reader->BeginStep(request->length() - 1);
    GiveCredit(request);
    executor::DecodeSlot slot;
    slot.sequence = request->sequence.get();
    slot.position = request->length() - 1;
    slot.token = request->tokens.back();
    slot.logits = std::span<float>(cohort->logits).subspan(i * vocab, vocab);
    slot.read = &reading.read;
    slots.push_back(slot);
    cohort->members.push_back({request, request->sequence, request->reading, request->length()});
  }
  auto run = parts_.executor->StartStep(slots);
  if (!run.ok()) {
    for (const auto& member : cohort->members) member.reading->under_way = false;
    if (ready.size() == 1) return Fail(ready[0], base::Annotate(run.status(), "decode step"));
    // One that cannot be computed must not take the others with it.
    for (const auto& request : ready) StartCohort({&request, 1});
    return;
  }
  cohort->run = *std::move(run);
  cohorts_.push_back(std::move(cohort));
}

bool DecodeEngine::AdvanceCohorts() {
  bool advanced = false;
  const auto cohorts = cohorts_;
  for (const auto& cohort : cohorts) {
    if (cohort->run == nullptr) continue;  // dissolved by one before
    const base::TimePoint begin = parts_.clock->Now();
    const auto state = cohort->run->Advance();
    if (state.ok() && *state == executor::StepRun::State::kWaiting) {
      if (cohort->waiting_since == base::TimePoint{}) cohort->waiting_since = parts_.clock->Now();
      continue;
    }
    advanced = true;
    std::erase(cohorts_, cohort);
    if (cohort->waiting_since != base::TimePoint{}) {
      hot_->stall_seconds.Observe(base::ToSeconds(parts_.clock->Now() - cohort->waiting_since));
    } else if (state.ok()) {
      step_times_.Stepped(base::ToSeconds(parts_.clock->Now() - begin));
    }
    FinishCohort(*cohort, state.status());
  }
  return advanced;
}

void DecodeEngine::DissolveCohortOf(const Request& request) {
  if (request.reading == nullptr || !request.reading->under_way) return;
  const auto it = std::find_if(cohorts_.begin(), cohorts_.end(), [&](const auto& cohort) {
    return std::any_of(cohort->members.begin(), cohort->members.end(),
                       [&](const auto& member) { return member.reading == request.reading; });
  });
  if (it == cohorts_.end()) return;
  const std::shared_ptr<Cohort> cohort = *it;
  cohorts_.erase(it);
  cohort->run.reset();
  for (const auto& member : cohort->members) member.reading->under_way = false;
  cohort->members.clear();
}

void DecodeEngine::FinishCohort(Cohort& cohort, const absl::Status& status) {
  const auto vocab = static_cast<size_t>(parts_.executor->config().vocab_size);
  for (size_t i = 0; i < cohort.members.size(); ++i) {
    auto& member = cohort.members[i];
    const RequestPtr& request = member.request;
    member.reading->under_way = false;
    // Cancelled, pre-empted or begun anew meanwhile.
    if (request->state() != RequestState::kReading || request->reading != member.reading) continue;
    RemoteReader& reader = *member.reading->reader;
    if (!reader.failure().ok()) {
      AttemptFailed(request, Fallback::kTransferStalled, reader.failure());
      continue;
    }
    if (!status.ok()) {
      // Another member's failure: this one's step is made again. Nobody's that one knows of: each
      // makes it again alone, and fails by itself.
      const bool others = std::any_of(
          cohort.members.begin(), cohort.members.end(), [](const Cohort::Member& other) {
            return other.reading->reader != nullptr && !other.reading->reader->failure().ok();
          });
      if (others) continue;
      if (cohort.members.size() == 1) {
        Fail(request, base::Annotate(status, "decode step"));
      } else {
        member.reading->alone = true;
      }
      continue;
    }
    member.reading->alone = false;
    const executor::SlotRead& read = member.reading->read;
    TraceStepRead(*request, read);
    request->stats.selected_entries += read.selected_entries;
    request->stats.remote_entries += read.remote_entries;
    if (cohort.waiting_since != base::TimePoint{}) ++request->stats.wait_steps;
    if (member.reading->selector == nullptr) {
      ++request->stats.handover_steps;
    } else {
      LearnMisses(*request, read.remote_entries);
    }
    if (read.selected_entries > 0) {
      hot_->miss_ratio.Observe(static_cast<double>(read.remote_entries) /
                               static_cast<double>(read.selected_entries));
    }
    SampleAndDeliver(request, std::span<float>(cohort.logits).subspan(i * vocab, vocab));
  }
}

}  // namespace smartgen::decode_server
