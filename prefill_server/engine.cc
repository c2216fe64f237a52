#include "prefill_server/engine.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/base/log.h"
#include "common/transfer/message_trace.h"
#include "prefill_server/chunk_trace.h"
#include "prefill_server/engine_metrics.h"
#include "prefill_server/scheduler.h"

namespace smartgen::prefill_server {
namespace {

// How long the engine sleeps when only time can change something (deadlines, room that comes back).
constexpr base::Duration kTick = std::chrono::milliseconds(10);
constexpr base::Duration kIdle = std::chrono::seconds(1);

std::span<const int32_t> Span(const std::vector<int32_t>& tokens) { return tokens; }

}  // namespace

PrefillEngine::PrefillEngine(Options options, Parts parts, bool start_threads)
    : options_(options),
      parts_(parts),
      hot_(std::make_unique<Hot>(*parts.metrics)),
      watchdog_(parts.clock, options.watchdog),
      logits_(static_cast<size_t>(parts.executor->config().vocab_size)),
      handover_credit_at_(parts.clock->Now()),
      leases_(parts.clock, options.lease_tick, start_threads) {
  if (start_threads) thread_ = std::thread([this] { Run(); });
}

PrefillEngine::~PrefillEngine() { Stop(); }

void PrefillEngine::Stop() {
  refuse_new_ = true;
  stop_ = true;
  const absl::Status reason = base::Unavailable("prefilld is stopping");
  std::vector<std::shared_ptr<Job>> jobs;
  {
    base::MutexLock lock(mutex_);
    for (const auto& [id, job] : jobs_) jobs.push_back(job);
  }
  for (const auto& job : jobs) job->Cancel(reason);
  mailbox_.Close();
  if (thread_.joinable()) thread_.join();
  for (auto& task : mailbox_.Take()) task();
  SweepCancelled();
  for (const auto& job : jobs) leases_.Release(job->spec.id);
  UpdateLoad();
}

absl::Status PrefillEngine::CheckSpec(const JobSpec& spec) const {
  const auto count = static_cast<int64_t>(spec.tokens.size());
  const int64_t capacity = parts_.pool->layout().token_capacity;
  if (count < 1 || count > capacity) {
    return base::InvalidArgument("token_ids: want 1 to {} tokens, got {}", capacity, count);
  }
  if (spec.prompt_tokens < 1 || spec.prompt_tokens > count) {
    return base::InvalidArgument("prompt_tokens: want 1 to {} (the token_ids' count), got {}",
                                 count, spec.prompt_tokens);
  }
  if (spec.decode_cached_tokens < 0 || spec.decode_cached_tokens >= count) {
    return base::InvalidArgument("decode_cached_tokens: want 0 to {}, got {}", count - 1,
                                 spec.decode_cached_tokens);
  }
  if (spec.max_tokens < 1)
    return base::InvalidArgument("max_tokens: want at least 1, got {}", spec.max_tokens);
  const int vocab = parts_.executor->config().vocab_size;
  for (size_t i = 0; i < spec.tokens.size(); ++i) {
    if (spec.tokens[i] < 0 || spec.tokens[i] >= vocab) {
      return base::InvalidArgument("token_ids[{}]: want 0 to {}, got {}", i, vocab - 1,
                                   spec.tokens[i]);
    }
  }
  RETURN_IF_ERROR(spec.sampling.Check(vocab));
  const int64_t pages = kv::KvPool::PagesFor(count);
  if (pages > parts_.pool->total_pages()) {
    return base::ResourceExhausted(
        "the prompt's {} tokens need {} KV pages; this instance has {} in all", count, pages,
        parts_.pool->total_pages());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Job>> PrefillEngine::Submit(JobSpec spec,
                                                           std::shared_ptr<JobListener> listener) {
  if (refuse_new_) return base::Unavailable("prefilld is draining: it takes no new work");
  RETURN_IF_ERROR(CheckSpec(spec));
  auto job = std::make_shared<Job>(std::move(spec), std::move(listener), parts_.clock->Now());
  {
    base::MutexLock lock(mutex_);
    if (load_.queued + submitted_ >= options_.max_queue) {
      return base::ResourceExhausted("{} prompts are waiting already (max_queue)",
                                     options_.max_queue);
    }
    if (early_.contains(job->spec.id)) {
      return base::Cancelled("transfer {} was released before it came", job->spec.id.ToString());
    }
    if (!jobs_.emplace(job->spec.id, job).second) {
      return base::AlreadyExists("transfer {} is in use", job->spec.id.ToString());
    }
    ++submitted_;
  }
  const bool posted = mailbox_.Post([this, job] {
    {
      base::MutexLock lock(mutex_);
      --submitted_;
      ++load_.queued;  // in the same moment, or a drain would see neither
    }
    queue_.push_back(job);
  });
  if (!posted) {
    base::MutexLock lock(mutex_);
    --submitted_;
    jobs_.erase(job->spec.id);
    return base::Unavailable("prefilld is stopping");
  }
  return job;
}

void PrefillEngine::Cancel(const std::shared_ptr<Job>& job, const absl::Status& reason) {
  job->Cancel(reason);
  leases_.Release(job->spec.id);
  mailbox_.Post([] {});  // wakes the engine
}

absl::Status PrefillEngine::Renew(const base::TransferId& id) {
  absl::Status status = leases_.Renew(id, options_.lease);
  if (status.ok()) return status;
  base::MutexLock lock(mutex_);
  const auto it = jobs_.find(id);
  // A queued job has no lease yet and needs none.
  if (it != jobs_.end() && !it->second->cancelled() && it->second->sequence() == nullptr)
    return absl::OkStatus();
  return status;
}

void PrefillEngine::Release(const base::TransferId& id, const absl::Status& reason) {
  std::shared_ptr<Job> job;
  {
    base::MutexLock lock(mutex_);
    if (const auto it = jobs_.find(id); it != jobs_.end()) {
      job = it->second;
    } else if (early_.insert(id).second) {
      early_order_.push_back(id);
      if (early_order_.size() > kMaxEarly) {
        early_.erase(early_order_.front());
        early_order_.pop_front();
      }
    }
  }
  if (job != nullptr) Cancel(job, reason);
}

void PrefillEngine::DropLink(const DecodeLink* link, const absl::Status& reason) {
  std::vector<std::shared_ptr<Job>> jobs;
  {
    base::MutexLock lock(mutex_);
    for (const auto& [id, job] : jobs_) {
      if (job->spec.link.get() == link) jobs.push_back(job);
    }
  }
  for (const auto& job : jobs) Cancel(job, reason);
}

PrefillEngine::Load PrefillEngine::load() const {
  base::MutexLock lock(mutex_);
  Load load = load_;
  load.queued += submitted_;
  load.leases = leases_.size();
  return load;
}

void PrefillEngine::Run() {
  while (!stop_) {
    if (Step()) continue;
    mailbox_.WaitFor(queue_.empty() && !handover_deferred_ ? kIdle : kTick);
  }
}

bool PrefillEngine::Step() {
  watchdog_.Touch();
  for (auto& task : mailbox_.Take()) task();
  SweepCancelled();
  StartQueued();
  UpdateLoad();
  const bool handed_over = RunHandover();
  std::vector<Candidate> candidates;
  for (const auto& job : running_) {
    candidates.push_back(
        {.remaining_tokens = job->tokens() - job->done_tokens, .passed_over = job->passed_over});
  }
  const std::optional<size_t> next = ChooseNext(candidates);
  if (!next) return handed_over;
  for (const auto& job : running_) ++job->passed_over;
  const std::shared_ptr<Job> job = running_[*next];
  job->passed_over = 0;
  RunChunk(job);
  UpdateLoad();
  return true;
}

void PrefillEngine::SweepCancelled() {
  std::vector<std::shared_ptr<Job>> all(queue_.begin(), queue_.end());
  all.insert(all.end(), running_.begin(), running_.end());
  for (const auto& job : all) {
    if (!job->cancelled() && job->spec.deadline.Expired(*parts_.clock)) {
      job->Cancel(base::DeadlineExceeded("the prefill's deadline passed while it {}",
                                         job->state() == JobState::kQueued ? "was queued" : "ran"));
    }
    if (!job->cancelled() && stop_) job->Cancel(base::Unavailable("prefilld is stopping"));
    if (job->cancelled()) Fail(job, job->cancel_reason());
  }
}

void PrefillEngine::StartQueued() {
  while (!queue_.empty() && static_cast<int>(running_.size()) < options_.max_running) {
    const std::shared_ptr<Job> job = queue_.front();
    if (!TryStart(job)) return;
  }
}

bool PrefillEngine::TryStart(const std::shared_ptr<Job>& job) {
  // At least one token is computed: token 1 comes from its logits.
  auto prefix = parts_.prefix_cache->Lookup(Span(job->spec.tokens), job->tokens() - 1);
  auto sequence = std::make_shared<kv::KvSequence>(parts_.pool, std::move(prefix));
  const absl::Status room = sequence->Reserve(job->tokens());
  if (absl::IsResourceExhausted(room))
    return false;  // pages under leases come back; the deadline bounds the wait
  job->cached_tokens = job->done_tokens = sequence->prefix_tokens();
  job->SetSequence(sequence);
  absl::Status status = room;
  if (status.ok()) status = GrantLease(job);
  if (status.ok() && job->wants_transfer()) status = BeginTransfer(*job, std::move(sequence));
  if (!status.ok()) {
    Fail(job, status);
    return true;
  }
  queue_.pop_front();
  job->Advance(JobState::kRunning);
  job->started = parts_.clock->Now();
  running_.push_back(job);
  const double queue_seconds = base::ToSeconds(job->started - job->arrival);
  hot_->queue_seconds.Observe(queue_seconds);
  hot_->prefix_tokens.Add(static_cast<double>(job->cached_tokens));
  job->listener->Started(job->cached_tokens, queue_seconds);
  return true;
}

absl::Status PrefillEngine::GrantLease(const std::shared_ptr<Job>& job) {
  RETURN_IF_ERROR(leases_.Grant(job->spec.id, options_.lease,
                                [this, job](kv::LeaseTable::End end) { OnLeaseEnd(job, end); }));
  // A cancel that came before the grant found no lease to end.
  if (job->cancelled()) {
    leases_.Release(job->spec.id);
    return job->cancel_reason();
  }
  return absl::OkStatus();
}

void PrefillEngine::OnLeaseEnd(const std::shared_ptr<Job>& job, kv::LeaseTable::End end) {
  if (end == kv::LeaseTable::End::kExpired) {
    hot_->expired.Add();
    SMARTGEN_LOG(warn, "prefill",
                 "lease expired transfer={}: nobody renewed or released it within {:g} s",
                 job->spec.id.ToString(), base::ToSeconds(options_.lease));
    job->Cancel(base::Aborted("the lease on the prompt's KV expired"));
    job->spec.link->NotifyAborted(job->spec.id, "lease expired");
    mailbox_.Post([] {});
  }
  job->spec.link->End(job->spec.id);
  job->SetSequence(nullptr);
  Forget(*job);
  if (job->spec.trace != nullptr) job->spec.trace->Finish(trace::Kind::kPrompt);
}

absl::Status PrefillEngine::BeginTransfer(Job& job, std::shared_ptr<kv::KvSequence> sequence) {
  DecodeLink& link = *job.spec.link;
  TransferPlanner::Input input;
  input.tokens = job.tokens();
  input.decode_cached = job.spec.decode_cached_tokens;
  input.prefill_cached = job.cached_tokens;
  input.chunk_tokens = options_.chunk_tokens;
  input.mode = job.spec.mode;
  input.transfer = job.spec.transfer;
  input.link = link.estimate();
  input.sharing = Sharing(&link);
  input.seed = job.spec.id.lo;
  if (transfer::Selects(job.spec.mode)) {
    ASSIGN_OR_RETURN(auto selector, parts_.selectors->Get(job.spec.transfer.selector,
                                                          job.spec.transfer.selection_budget));
    input.metadata_bytes =
        selector->metadata().TotalBytes(job.spec.decode_cached_tokens, job.tokens());
    job.metadata = std::make_unique<MetadataSource>(
        std::move(selector), sequence->layout().token_capacity, job.spec.decode_cached_tokens);
  }
  const DeliveryPlan plan = parts_.planner->Plan(input);
  transfer::SendSpec spec;
  spec.id = job.spec.id;
  spec.sequence = std::move(sequence);
  spec.begin = job.spec.decode_cached_tokens;
  spec.end = job.tokens();
  spec.full = job.spec.mode == transfer::Mode::kFull;
  spec.order = plan.order;
  spec.pushed = plan.pushed_blocks;
  spec.deliver_rest = plan.deliver_rest;
  spec.credits = plan.credits;
  spec.on_message = transfer::TraceMessages(job.spec.trace, /*sent=*/true, job.tokens());
  RETURN_IF_ERROR(link.Begin(std::move(spec)));
  // A lease that ended meanwhile found no transfer to end.
  if (job.cancelled()) {
    link.End(job.spec.id);
    return job.cancel_reason();
  }
  link.NotifyPlan(job.spec.id, plan);
  trace::Mark(job.spec.trace, trace::Kind::kPlan,
              {plan.budget_blocks, plan.pushed_blocks, plan.total_blocks});
  // What is cached goes out at once, while the rest is computed.
  if (job.cached_tokens == 0) return absl::OkStatus();
  for (int layer = 0; layer < parts_.pool->layout().num_layers(); ++layer) {
    RETURN_IF_ERROR(link.LayerReady(job.spec.id, {layer, 0, job.cached_tokens}));
  }
  return absl::OkStatus();
}

int64_t PrefillEngine::Sharing(const DecodeLink* link) const {
  base::MutexLock lock(mutex_);
  return std::count_if(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
    return entry.second->spec.link.get() == link && entry.second->wants_transfer();
  });
}

void PrefillEngine::RunChunk(const std::shared_ptr<Job>& job) {
  const std::shared_ptr<kv::KvSequence> sequence = job->sequence();
  if (sequence == nullptr) {  // the lease has just ended; the sweep deals with it
    Fail(job, job->cancelled() ? job->cancel_reason()
                               : base::Aborted("the lease on the prompt's KV ended"));
    return;
  }
  const int64_t length = std::min<int64_t>(options_.chunk_tokens, job->tokens() - job->done_tokens);
  const bool last = job->done_tokens + length == job->tokens();
  const std::span<float> logits = last ? std::span<float>(logits_) : std::span<float>();
  const base::TimePoint begin = parts_.clock->Now();
  const absl::Status status = ComputeChunk(*job, *sequence, length, logits);
  job->compute_seconds += base::ToSeconds(parts_.clock->Now() - begin);
  if (!status.ok()) {
    Fail(job, job->cancelled() ? job->cancel_reason() : status);
    return;
  }
  hot_->local_tokens.Add(static_cast<double>(length));
  job->done_tokens += length;
  if (last) FinishPrompt(job, logits);
}

absl::Status PrefillEngine::ComputeChunk(Job& job, kv::KvSequence& sequence, int64_t length,
                                         std::span<float> logits) {
  executor::PrefillChunk chunk;
  chunk.sequence = &sequence;
  chunk.start = job.done_tokens;
  chunk.tokens = Span(job.spec.tokens)
                     .subspan(static_cast<size_t>(job.done_tokens), static_cast<size_t>(length));
  chunk.last_logits = logits;
  ChunkTrace layers(job.spec.trace, chunk.start, length);
  const MetadataSource::Sink metadata_sink = [&](int layer, int64_t begin, int64_t end, bool header,
                                                 std::vector<std::byte> bytes) {
    return job.spec.link->Metadata(job.spec.id, layer, begin, end, header, std::move(bytes));
  };
  if (job.metadata != nullptr) {
    chunk.on_queries = [&](int layer, std::span<const float> queries, int64_t ld) {
      if (job.cancelled()) return;
      const absl::Status sent = job.metadata->OnQueries(layer, queries, ld, metadata_sink);
      if (!sent.ok()) job.Cancel(base::Annotate(sent, "sending metadata"));
    };
  }
  chunk.on_layer = [&](int layer, int64_t begin, int64_t end) {
    layers.LayerReady(layer);
    if (!job.wants_transfer() || job.cancelled()) return;
    absl::Status sent;
    // Before the KV, for it is small and needed first.
    if (job.metadata != nullptr) {
      sent = job.metadata->OnLayer(layer, end, sequence, metadata_sink);
    }
    if (sent.ok()) sent = job.spec.link->LayerReady(job.spec.id, {layer, begin, end});
    if (!sent.ok()) job.Cancel(base::Annotate(sent, "sending KV"));
  };
  chunk.cancelled = [&] {
    watchdog_.Touch();
    layers.EndLayer();
    RunHandover();
    layers.BeginLayer();
    return stop_ || job.cancelled() || job.spec.deadline.Expired(*parts_.clock);
  };
  const absl::Status status = parts_.executor->Prefill(chunk);
  if (absl::IsCancelled(status) && !job.cancelled()) {
    return stop_ ? base::Unavailable("prefilld is stopping")
                 : base::DeadlineExceeded("the prefill's deadline passed while it ran");
  }
  return status;
}

void PrefillEngine::FinishPrompt(const std::shared_ptr<Job>& job, std::span<float> logits) {
  const auto prompt = Span(job->spec.tokens).first(static_cast<size_t>(job->spec.prompt_tokens));
  const auto generated = Span(job->spec.tokens).subspan(prompt.size());
  sampling::Sampler sampler(job->spec.sampling, prompt, generated);
  const absl::StatusOr<sampling::SampledToken> token = sampler.Sample(logits, job->tokens());
  if (!token.ok()) {
    Fail(job, token.status());
    return;
  }
  if (const auto sequence = job->sequence(); sequence != nullptr) {
    parts_.prefix_cache->Insert(Span(job->spec.tokens), *sequence);
  }
  const bool transfer = job->wants_transfer() && !sampler.IsEos(token->id);
  const double seconds = base::ToSeconds(parts_.clock->Now() - job->started);
  hot_->prefill_seconds.Observe(seconds);
  hot_->generated.Add();
  std::erase(running_, job);
  job->Advance(JobState::kEnded);
  job->held_tokens = job->tokens();
  job->SetComputed();
  trace::Mark(job->spec.trace, trace::Kind::kToken, {1, job->tokens()});
  parts_.planner->Learn(job->tokens() - job->cached_tokens, job->cached_tokens,
                        job->compute_seconds);
  if (transfer) job->spec.link->PromptDone(job->spec.id);
  job->listener->FirstToken(*token);
  job->listener->Done(transfer, seconds);
  if (!transfer) leases_.Release(job->spec.id);
}

void PrefillEngine::Fail(const std::shared_ptr<Job>& job, const absl::Status& status) {
  job->Cancel(status);
  std::erase(queue_, job);
  std::erase(running_, job);
  job->Advance(JobState::kEnded);
  leases_.Release(job->spec.id);
  job->SetSequence(nullptr);
  Forget(*job);
  if (job->spec.trace != nullptr) job->spec.trace->Finish(trace::Kind::kPrompt);
  SMARTGEN_LOG(info, "prefill", "prompt ended transfer={} tokens={} done={} status={}",
               job->spec.id.ToString(), job->tokens(), job->done_tokens, base::MessageOf(status));
  job->listener->Failed(status);
}

void PrefillEngine::Forget(const Job& job) {
  base::MutexLock lock(mutex_);
  const auto it = jobs_.find(job.spec.id);
  if (it != jobs_.end() && it->second.get() == &job) jobs_.erase(it);
}

void PrefillEngine::UpdateLoad() {
  watchdog_.SetBusy(!queue_.empty() || !running_.empty());
  base::MutexLock lock(mutex_);
  load_.queued = static_cast<int64_t>(queue_.size());
  load_.running = static_cast<int64_t>(running_.size());
}

void PrefillEngine::CollectMetrics() {
  std::vector<std::shared_ptr<Job>> jobs;
  {
    base::MutexLock lock(mutex_);
    for (const auto& [id, job] : jobs_) jobs.push_back(job);
  }
  int64_t used = 0;
  int64_t leased = 0;
  for (const auto& job : jobs) {
    const auto sequence = job->sequence();
    if (sequence == nullptr) continue;
    (job->computed() ? leased : used) += static_cast<int64_t>(sequence->pages().size());
  }
  const int64_t free = parts_.pool->free_pages();
  // Pages that several share are counted with each; what is left over is the cache's.
  const int64_t cached = std::max<int64_t>(parts_.pool->total_pages() - free - used - leased, 0);
  const std::array<int64_t, 4> values = {free, used, cached, leased};
  for (size_t i = 0; i < values.size(); ++i) hot_->pages[i]->Set(static_cast<double>(values[i]));
  const Load now = load();
  hot_->running.Set(static_cast<double>(now.running));
  hot_->waiting.Set(static_cast<double>(now.queued));
  hot_->leases.Set(static_cast<double>(now.leases));
  if (const transfer::CostModel* costs = parts_.planner->costs(); costs != nullptr) {
    parts_.metrics->GetGauge("prediction_ratio", {{"kind", "prefill"}}).Set(costs->prefill_ratio());
  }
}

}  // namespace smartgen::prefill_server
