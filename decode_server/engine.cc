#include "decode_server/engine.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "decode_server/engine_metrics.h"
#include "decode_server/request_trace.h"

namespace smartgen::decode_server {
namespace {

// How long the engine sleeps when only time can change something (deadlines, transfers, room that
// comes back).
constexpr base::Duration kTick = std::chrono::milliseconds(10);
constexpr base::Duration kIdle = std::chrono::seconds(1);

std::span<const int32_t> Span(const std::vector<int32_t>& tokens) { return tokens; }

}  // namespace

DecodeEngine::DecodeEngine(Options options, Parts parts, bool start_thread)
    : options_(options),
      parts_(parts),
      max_tokens_(std::min(parts.pool->layout().token_capacity,
                           parts.pool->total_pages() * kv::kPageTokens)),
      hot_(std::make_unique<Hot>(*parts.metrics)),
      watchdog_(parts.clock, options.watchdog),
      mailbox_(std::make_shared<base::Mailbox>()),
      logits_(static_cast<size_t>(options.max_batch) * parts.executor->config().vocab_size),
      placement_({.layers = parts.pool->layout().num_layers(),
                  .kv_bytes_per_token = parts.pool->layout().TokenBytes(),
                  .max_prefill_tokens = options.max_prefill_tokens,
                  .local_chunk_tokens = options.local_chunk_tokens},
                 parts.costs) {
  if (start_thread) thread_ = std::thread([this] { Run(); });
}

DecodeEngine::~DecodeEngine() { Stop(); }

void DecodeEngine::Stop() {
  refuse_new_ = true;
  if (stop_.exchange(true)) return;
  CancelAll(base::Unavailable("decoded is stopping"));
  mailbox_->Close();
  if (thread_.joinable()) thread_.join();
  for (auto& task : mailbox_->Take()) task();
  Sweep();
  UpdateLoad();
}

absl::Status DecodeEngine::CheckSpec(const GenerateSpec& spec) const {
  const int vocab = parts_.executor->config().vocab_size;
  if (spec.prompt.empty())
    return base::InvalidArgument("prompt_ids: want at least one token, got none");
  const auto length = static_cast<int64_t>(spec.prompt.size() + spec.generated.size());
  const int64_t capacity = parts_.pool->layout().token_capacity;
  if (length >= capacity) {
    return base::InvalidArgument(
        "prompt_ids: {} tokens leave no room for a further one in the context of {}", length,
        capacity);
  }
  if (length >= max_tokens_) {
    return base::OutOfRange(
        "{} tokens and a further one can never fit: this instance has KV room for {} in all",
        length, max_tokens_);
  }
  if (spec.max_tokens <= static_cast<int64_t>(spec.generated.size())) {
    return base::InvalidArgument(
        "max_tokens: want more than the {} tokens generated already, got {}", spec.generated.size(),
        spec.max_tokens);
  }
  if (static_cast<int64_t>(spec.sampling.forced_ids.size()) > spec.max_tokens) {
    return base::InvalidArgument("forced_ids: want at most max_tokens ({}) of them, got {}",
                                 spec.max_tokens, spec.sampling.forced_ids.size());
  }
  for (const auto* ids : {&spec.prompt, &spec.generated}) {
    for (size_t i = 0; i < ids->size(); ++i) {
      if ((*ids)[i] < 0 || (*ids)[i] >= vocab) {
        return base::InvalidArgument("{}[{}]: want 0 to {}, got {}",
                                     ids == &spec.prompt ? "prompt_ids" : "generated_ids", i,
                                     vocab - 1, (*ids)[i]);
      }
    }
  }
  const auto& forced = spec.sampling.forced_ids;
  const size_t both = std::min(spec.generated.size(), forced.size());
  if (!std::equal(forced.begin(), forced.begin() + static_cast<std::ptrdiff_t>(both),
                  spec.generated.begin())) {
    return base::InvalidArgument(
        "forced_ids: want generated_ids first, they differ within the first {} tokens", both);
  }
  return spec.sampling.Check(vocab);
}

absl::StatusOr<std::shared_ptr<Request>> DecodeEngine::Submit(
    GenerateSpec spec, std::shared_ptr<GenerateListener> listener) {
  if (refuse_new_) return base::Unavailable("decoded is draining: it takes no new work");
  RETURN_IF_ERROR(CheckSpec(spec));
  uint64_t serial = 0;
  {
    base::MutexLock lock(mutex_);
    if (load_.waiting + submitted_ >= options_.max_waiting) {
      return base::ResourceExhausted(
          "{} requests are waiting for KV room already (max_waiting); try again later",
          options_.max_waiting);
    }
    ++submitted_;
    serial = ++serial_;
  }
  auto request =
      std::make_shared<Request>(std::move(spec), std::move(listener), parts_.clock->Now(), serial);
  const bool posted = mailbox_->Post([this, request] {
    {
      base::MutexLock lock(mutex_);
      --submitted_;
      ++load_.waiting;  // in the same moment, or a drain would see neither
    }
    waiting_.push_back(request);
  });
  if (!posted) {
    base::MutexLock lock(mutex_);
    --submitted_;
    return base::Unavailable("decoded is stopping");
  }
  return request;
}

void DecodeEngine::Cancel(const RequestPtr& request, const absl::Status& reason) {
  request->Cancel(reason);
  mailbox_->Post([] {});  // wakes the engine
}

void DecodeEngine::CancelAll(const absl::Status& reason) {
  mailbox_->Post([this, reason] {
    for (const auto& request : waiting_) request->Cancel(reason);
    for (const auto& request : active_) request->Cancel(reason);
  });
}

DecodeEngine::Load DecodeEngine::load() const {
  base::MutexLock lock(mutex_);
  Load load = load_;
  load.waiting += submitted_;
  return load;
}

void DecodeEngine::UpdateLoad() {
  watchdog_.SetBusy(!active_.empty() || !waiting_.empty());
  int64_t used = 0;
  for (const auto& request : active_) {
    if (request->sequence != nullptr)
      used += static_cast<int64_t>(request->sequence->pages().size());
  }
  used_pages_ = used;
  base::MutexLock lock(mutex_);
  load_.waiting = static_cast<int64_t>(waiting_.size());
  load_.running = static_cast<int64_t>(active_.size());
}

void DecodeEngine::CollectMetrics() {
  const Load now = load();
  hot_->running.Set(static_cast<double>(now.running));
  hot_->waiting.Set(static_cast<double>(now.waiting));
  const int64_t free = parts_.pool->free_pages();
  const int64_t used = used_pages_;
  hot_->pages_free.Set(static_cast<double>(free));
  hot_->pages_used.Set(static_cast<double>(used));
  // Pages that several share are counted with each; what is left over is the cache's.
  hot_->pages_cached.Set(
      static_cast<double>(std::max<int64_t>(parts_.pool->total_pages() - free - used, 0)));
  if (parts_.costs == nullptr) return;
  const auto ratio = [this](const char* kind) -> metrics::Gauge& {
    return parts_.metrics->GetGauge("prediction_ratio", {{"kind", kind}});
  };
  ratio("prefill").Set(parts_.costs->prefill_ratio());
  ratio("step").Set(parts_.costs->step_ratio());
}

void DecodeEngine::Run() {
  while (!stop_) {
    if (Step()) continue;
    mailbox_->WaitFor(waiting_.empty() && active_.empty() ? kIdle : kTick);
  }
}

bool DecodeEngine::Step() {
  watchdog_.Touch();
  for (auto& task : mailbox_->Take()) task();
  Sweep();
  Admit();
  WatchAttempts();
  UpdateLoad();
  const bool advanced = AdvanceCohorts();
  StartCohorts();
  const bool decoded = RunDecodeStep();
  const bool prefilled = !local_.empty();
  if (prefilled) RunLocalChunk();
  UpdateLoad();
  return advanced || decoded || prefilled;
}

void DecodeEngine::Sweep() {
  std::vector<RequestPtr> all(waiting_.begin(), waiting_.end());
  all.insert(all.end(), active_.begin(), active_.end());
  for (const auto& request : all) {
    if (!request->cancelled() && request->spec.deadline.Expired(*parts_.clock)) {
      request->Cancel(base::DeadlineExceeded("the deadline passed while the request was {}",
                                             RequestStateName(request->state())));
    }
    if (!request->cancelled() && stop_) request->Cancel(base::Unavailable("decoded is stopping"));
    if (request->cancelled()) Fail(request, request->cancel_reason());
  }
}

void DecodeEngine::StartLocal(const RequestPtr& request) {
  request->Advance(RequestState::kLocalPrefill);
  request->local_done = request->sequence->prefix_tokens();
  request->stats.mode = Mode::kLocal;
  request->stats.prefill_address.clear();
  local_.push_back(request);
}

void DecodeEngine::RunLocalChunk() {
  const RequestPtr request = local_.front();
  local_.pop_front();
  // Whoever else is here wants the thread soon: a stream, a prompt, KV that arrives, room to start.
  const bool alone = active_.size() == 1 && waiting_.empty();
  const int64_t limit = alone ? options_.max_prefill_tokens
                              : std::min(options_.local_chunk_tokens, options_.max_prefill_tokens);
  const int64_t length = std::min(limit, request->length() - request->local_done);
  const bool last = request->local_done + length == request->length();
  const std::span<float> logits = std::span<float>(logits_).first(
      last ? static_cast<size_t>(parts_.executor->config().vocab_size) : 0);
  const base::TimePoint begin = parts_.clock->Now();
  const absl::Status status = ComputeChunk(*request, length, logits);
  if (!status.ok()) return Fail(request, request->cancelled() ? request->cancel_reason() : status);
  if (const auto& trace = request->spec.trace; trace != nullptr) {
    trace->Add(trace::Kind::kPrefillChunk, begin, {request->local_done, length});
  }
  placement_.Computed(length, request->local_done, base::ToSeconds(parts_.clock->Now() - begin));
  const bool again = request->stats.preemptions > 0 || request->generated() > 0;
  (again ? hot_->recomputed_tokens : hot_->local_tokens).Add(static_cast<double>(length));
  request->local_done += length;
  if (!last) {
    local_.push_back(request);
    return;
  }
  parts_.prefix_cache->Insert(Span(request->tokens), *request->sequence);
  request->stats.prefill_seconds += base::ToSeconds(parts_.clock->Now() - request->prefill_started);
  hot_->prefill_seconds.Observe(base::ToSeconds(parts_.clock->Now() - request->prefill_started));
  request->Advance(RequestState::kDecoding);
  request->decode_started = parts_.clock->Now();
  SampleAndDeliver(request, logits);
}

absl::Status DecodeEngine::ComputeChunk(Request& request, int64_t length, std::span<float> logits) {
  executor::PrefillChunk chunk;
  chunk.sequence = request.sequence.get();
  chunk.start = request.local_done;
  chunk.tokens = Span(request.tokens)
                     .subspan(static_cast<size_t>(request.local_done), static_cast<size_t>(length));
  chunk.last_logits = logits;
  chunk.cancelled = [&] {
    watchdog_.Touch();
    return stop_ || request.cancelled() || request.spec.deadline.Expired(*parts_.clock);
  };
  const absl::Status status = parts_.executor->Prefill(chunk);
  if (absl::IsCancelled(status) && !request.cancelled()) {
    return stop_ ? base::Unavailable("decoded is stopping")
                 : base::DeadlineExceeded("the deadline passed while the prompt was computed");
  }
  return status;
}

bool DecodeEngine::RunDecodeStep() {
  const std::vector<Share> batch = CollectBatch();
  const auto flush = [this] {
    for (const auto& request : active_) {
      if (request->state() == RequestState::kHandover) request->remote.attempt->FlushSteps();
    }
  };
  if (batch.empty()) {
    flush();
    return false;
  }
  const auto vocab = static_cast<size_t>(parts_.executor->config().vocab_size);
  std::vector<executor::DecodeSlot> slots;
  for (size_t i = 0; i < batch.size(); ++i) {
    slots.push_back(MakeSlot(batch[i], std::span<float>(logits_).subspan(i * vocab, vocab)));
  }
  const base::TimePoint begin = parts_.clock->Now();
  const absl::Status status = RunSlots(slots);
  TraceStep(batch, begin);
  if (status.ok()) {
    for (size_t i = 0; i < batch.size(); ++i) {
      FinishShare(batch[i], status, std::span<float>(logits_).subspan(i * vocab, vocab));
    }
  } else {
    SMARTGEN_LOG(error, "decode", "a step of {} streams failed, trying them one by one: {}",
                 batch.size(), base::MessageOf(status));
    for (size_t i = 0; i < batch.size(); ++i) {
      const absl::Status alone = RunSlots({&slots[i], 1});
      FinishShare(batch[i], alone, std::span<float>(logits_).subspan(i * vocab, vocab));
    }
  }
  flush();
  return true;
}

std::vector<DecodeEngine::Share> DecodeEngine::CollectBatch() {
  std::vector<RequestPtr> ready;
  for (const auto& request : active_) {
    const RequestState state = request->state();
    const bool away = state == RequestState::kHandover &&
                      request->handover.phase == Request::Handover::Phase::kAway;
    if (state == RequestState::kDecoding || (state == RequestState::kHandover && !away)) {
      ready.push_back(request);
    }
  }
  const auto running = [](const RequestPtr& request) {
    return request->state() == RequestState::kDecoding ||
           request->state() == RequestState::kHandover;
  };
  std::erase_if(ready, [&](const RequestPtr& request) {
    return running(request) && !GrowOrPreempt(request);
  });
  std::vector<Share> batch;
  for (const auto& request : ready) {
    if (request->state() == RequestState::kDecoding) batch.push_back({request, Part::kWhole});
    if (request->state() != RequestState::kHandover) continue;
    if (const auto share = ShareOfHandover(request)) batch.push_back(*share);
  }
  return batch;
}

std::optional<DecodeEngine::Share> DecodeEngine::ShareOfHandover(const RequestPtr& request) {
  using Phase = Request::Handover::Phase;
  if (request->handover.phase == Phase::kBack) return Share{request, Part::kOutput};
  const int layers = LocalLayers(*request);
  if (layers == parts_.executor->config().num_layers() && !LacksMetadata(*request)) {
    if (request->reading != nullptr && request->reading->metadata != nullptr) {
      // All keys are here, so what is missing of the metadata is made here.
      for (int layer = 0; layer < layers; ++layer) {
        const absl::Status made = request->reading->selector->Extend(
            layer, *request->sequence, 0, request->length() - 1, *request->reading->metadata);
        if (made.ok()) continue;
        AttemptFailed(request, Fallback::kPrefillError, base::Annotate(made, "metadata"));
        return std::nullopt;
      }
    }
    NoteAllLocal(*request);  // the channel's thread may not have come to say so yet
    EnterDecoding(request);
    return Share{request, Part::kWhole};
  }
  if (request->reading != nullptr && LeaveHandover(request)) return std::nullopt;
  // Who selects without metadata has the whole step made where there is some, so that what is
  // selected never depends on what has come.
  if (request->reading == nullptr &&
      ChooseExactStep(*request, layers) == transfer::StepKind::kWait) {
    return std::nullopt;
  }
  CountStep(*request, transfer::StepKind::kSplit);
  request->handover.from = request->reading != nullptr ? 0 : layers;
  if (request->handover.from > 0) return Share{request, Part::kFirstLayers};
  if (request->reading != nullptr) GiveCredit(request);
  SendStep(request);
  return std::nullopt;
}

executor::DecodeSlot DecodeEngine::MakeSlot(const Share& share, std::span<float> logits) {
  Request& request = *share.request;
  executor::DecodeSlot slot;
  slot.sequence = request.sequence.get();
  slot.position = request.length() - 1;
  slot.token = request.tokens.back();
  switch (share.part) {
    case Part::kWhole:
      slot.logits = logits;
      if (request.reading != nullptr && request.reading->selector != nullptr) {
        slot.read = &request.reading->read;
      }
      break;
    case Part::kFirstLayers:
      slot.layer_end = request.handover.from;
      slot.hidden = request.handover.hidden;
      break;
    case Part::kOutput:
      slot.layer_begin = parts_.executor->config().num_layers();
      slot.hidden = request.handover.hidden;
      slot.logits = logits;
      break;
  }
  return slot;
}

absl::Status DecodeEngine::RunSlots(std::span<const executor::DecodeSlot> slots) {
  const bool selects = std::any_of(slots.begin(), slots.end(),
                                   [](const auto& slot) { return slot.read != nullptr; });
  if (!selects) {
    const base::TimePoint begin = parts_.clock->Now();
    RETURN_IF_ERROR(parts_.executor->Decode(slots));
    LearnStep(slots, base::ToSeconds(parts_.clock->Now() - begin));
    return absl::OkStatus();
  }
  const base::TimePoint begin = parts_.clock->Now();
  ASSIGN_OR_RETURN(const auto run, parts_.executor->StartStep(slots));
  ASSIGN_OR_RETURN(const auto state, run->Advance());
  if (state == executor::StepRun::State::kDone) {
    step_times_.Stepped(base::ToSeconds(parts_.clock->Now() - begin));
    return absl::OkStatus();
  }
  return base::Internal("a step whose KV is all here would wait");
}

void DecodeEngine::LearnStep(std::span<const executor::DecodeSlot> slots, double seconds) {
  int64_t context = 0;
  for (const executor::DecodeSlot& slot : slots) {
    if (slot.layer_begin != 0 || slot.layer_end >= 0) return;  // a part of a step
    context += slot.position;
  }
  const auto batch = static_cast<int64_t>(slots.size());
  placement_.Stepped(batch, context / batch, seconds);
  step_times_.Stepped(seconds);
}

void DecodeEngine::FinishShare(const Share& share, const absl::Status& status,
                               std::span<float> logits) {
  const RequestPtr& request = share.request;
  if (!status.ok()) return Fail(request, base::Annotate(status, "decode step"));
  switch (share.part) {
    case Part::kFirstLayers:
      SendStep(request);
      return;
    case Part::kOutput:
      ++request->stats.handover_steps;
      request->handover.phase = Request::Handover::Phase::kReady;
      break;
    case Part::kWhole:
      break;
  }
  SampleAndDeliver(request, logits);
}

bool DecodeEngine::SampleAndDeliver(const RequestPtr& request, std::span<float> logits) {
  const absl::StatusOr<sampling::SampledToken> token =
      request->sampler.Sample(logits, request->length());
  if (!token.ok()) {
    Fail(request, token.status());
    return false;
  }
  hot_->generated.Add();
  return Deliver(request, *token);
}

bool DecodeEngine::Deliver(const RequestPtr& request, const sampling::SampledToken& token) {
  TraceToken(*request);
  request->sampler.Accept(token.id);
  request->tokens.push_back(token.id);
  request->listener->Token(token);
  if (request->sampler.IsEos(token.id)) {
    Finish(request, FinishReason::kStop);
    return false;
  }
  if (request->generated() >= request->spec.max_tokens || request->length() >= max_tokens_) {
    Finish(request, FinishReason::kLength);
    return false;
  }
  return true;
}

void DecodeEngine::Finish(const RequestPtr& request, FinishReason reason) {
  const RequestState state = request->state();
  if (state == RequestState::kHandover || state == RequestState::kReading ||
      state == RequestState::kDecoding) {
    request->stats.decode_seconds += base::ToSeconds(parts_.clock->Now() - request->decode_started);
    hot_->decode_seconds.Observe(request->stats.decode_seconds);
  }
  // Pages written under a selection hold other values than full attention gives.
  if (state == RequestState::kDecoding && request->reading == nullptr) {
    // The last token's KV was never computed.
    parts_.prefix_cache->Insert(Span(request->tokens).first(request->tokens.size() - 1),
                                *request->sequence);
  }
  // The link hid the transfer: what was taken is full.
  if (request->spec.mode == Mode::kAuto && request->stats.mode == Mode::kExact &&
      request->stats.handover_steps == 0) {
    request->stats.mode = Mode::kFull;
  }
  CloseRequest(request);
  request->stats.generated_tokens = request->generated();
  parts_.metrics->GetCounter("plan_mode_total", {{"mode", transfer::ModeName(request->stats.mode)}})
      .Add();
  request->listener->Finished(reason, request->stats);
}

void DecodeEngine::Fail(const RequestPtr& request, const absl::Status& status) {
  SMARTGEN_LOG(info, "decode", "request ended in state {} with {} tokens: {}",
               RequestStateName(request->state()), request->generated(), base::MessageOf(status));
  CloseRequest(request);
  request->listener->Failed(status);
}

void DecodeEngine::CloseRequest(const RequestPtr& request) {
  EndAttempt(*request);
  TraceStats(*request);
  std::erase(waiting_, request);
  std::erase(active_, request);
  std::erase(local_, request);
  request->sequence.reset();
  request->reading.reset();
  request->Advance(RequestState::kFinished);
}

}  // namespace smartgen::decode_server
