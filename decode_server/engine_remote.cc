// Remote prefill as the engine sees it: attempts, their events, stalls, fallback.
#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "decode_server/engine.h"
#include "decode_server/engine_metrics.h"
#include "decode_server/request_trace.h"

namespace smartgen::decode_server {
namespace {

constexpr double kMaxPlannedSeconds = 24 * 3600;  // what a peer can make us believe

}  // namespace

void DecodeEngine::TryRemote(const RequestPtr& request) {
  std::vector<std::string> candidates = parts_.directory->Healthy(request->spec.prefill_ranking);
  std::erase_if(candidates, [&](const std::string& address) {
    return std::find(request->tried.begin(), request->tried.end(), address) != request->tried.end();
  });
  const bool first_attempt = request->tried.empty();
  for (const std::string& address : candidates) {
    if (static_cast<int>(request->tried.size()) >= options_.max_attempts) break;
    const absl::Status status = StartAttempt(request, address);
    if (status.ok()) return;
    request->tried.push_back(address);
    CountFallback(*request, Fallback::kPeerDown,
                  fmt::format("{}: {}", address, base::MessageOf(status)));
  }
  if (first_attempt && request->tried.empty()) {
    CountFallback(*request, Fallback::kNoInstance, "no prefill instance is healthy");
  }
  if (!options_.local_fallback) {
    Fail(request, base::Unavailable("no prefill instance could take the prompt ({}), and "
                                    "local_fallback is off",
                                    request->stats.fallback_reason));
    return;
  }
  SMARTGEN_LOG(warn, "decode", "prefilling {} tokens locally reason={}", request->length(),
               request->stats.fallback_reason);
  StartLocal(request);
}

Mode DecodeEngine::AutoMode(const Request& request, const std::string& address) const {
  const std::string& selection = request.spec.transfer.selection;
  if (selection == "always") return Mode::kSmartGen;
  // Lossless first: exact is full where the link hides the transfer.
  const auto deferred = deferred_at_.find(address);
  const bool has_time = deferred == deferred_at_.end() ||
                        parts_.clock->Now() - deferred->second > kPatience * options_.stall;
  if (has_time) return Mode::kExact;
  return selection == "never" ? Mode::kFull : Mode::kSmartGen;
}

absl::Status DecodeEngine::StartAttempt(const RequestPtr& request, const std::string& address) {
  AttemptSpec spec;
  spec.tokens = request->tokens;
  spec.decode_cached_tokens = request->sequence->prefix_tokens();
  spec.prompt_tokens = request->stats.prompt_tokens;
  spec.sampling = request->spec.sampling;
  // Near the context's end fewer may come than were asked for.
  spec.max_tokens =
      std::min(request->spec.max_tokens - request->generated(), max_tokens_ - request->length());
  spec.deadline = base::Deadline::Earlier(
      request->spec.deadline, base::Deadline::After(*parts_.clock, options_.prefill_timeout));
  spec.sequence = request->sequence;
  const Mode mode =
      request->spec.mode == Mode::kAuto ? AutoMode(*request, address) : request->spec.mode;
  request->stats.mode = spec.mode = mode;
  spec.transfer = request->spec.transfer;
  spec.trace = request->spec.trace;
  request->remote = {};
  request->stats.all_local_seconds = 0;
  request->remote.prompt_end = request->length();
  request->outlook = {.held_there = request->length()};
  request->reading.reset();
  if (transfer::Selects(mode)) RETURN_IF_ERROR(PrepareReading(request));
  request->remote.number = ++request->attempts;
  request->remote.address = address;
  TraceAttempt(*request);
  ASSIGN_OR_RETURN(request->remote.attempt,
                   parts_.directory->Start(address, std::move(spec), MakeEvents(request)));
  request->remote.renewed_at = parts_.clock->Now();
  request->Advance(RequestState::kRemotePrefill);
  request->stats.prefill_address = address;
  return absl::OkStatus();
}

AttemptEvents DecodeEngine::MakeEvents(const RequestPtr& request) {
  // Events may come while and after the engine stops: the mailbox outlives it and drops them. An
  // event of an attempt that is no longer the request's is dropped on the engine's thread.
  const auto post = [mailbox = mailbox_, request, number = request->attempts](auto task) {
    mailbox->Post([request, number, task = std::move(task)] {
      const bool current = request->remote.attempt != nullptr && request->remote.number == number;
      if (current && request->state() != RequestState::kFinished) task();
    });
  };
  AttemptEvents events;
  events.on_started = [this, post, request](int64_t cached, double queued) {
    post([this, request, cached, queued] {
      request->remote.started = true;
      // Of what it was asked to have; a number beyond is no use to anybody.
      request->remote.cached = std::clamp<int64_t>(cached, 0, request->remote.prompt_end);
      request->remote.renewed_at = parts_.clock->Now();
      placement_.Queued(request->remote.address, queued, parts_.clock->Now());
      request->stats.cached_tokens =
          std::max(request->stats.cached_tokens,
                   std::min(request->remote.cached, request->stats.prompt_tokens));
    });
  };
  events.on_token = [this, post, request](sampling::SampledToken token) {
    post([this, request, token = std::move(token)] { OnToken(request, token); });
  };
  events.on_done = [this, post, request](bool transfer, double seconds) {
    post([this, request, transfer, seconds] { OnDone(request, transfer, seconds); });
  };
  events.on_complete = [this, post, request] { post([this, request] { OnComplete(request); }); };
  events.on_sent = [post, request] { post([request] { request->remote.sent = true; }); };
  events.on_plan = [post, request](const PlanInfo& plan) {
    post([request, plan] { request->remote.plan = plan; });
  };
  events.on_arrival = [post] { post([] {}); };  // wakes the engine
  events.on_reply = [this, post, request](uint64_t step, int layer, std::vector<std::byte> bytes) {
    post([this, request, step, layer, bytes = std::move(bytes)] {
      OnReply(request, step, layer, bytes);
    });
  };
  events.on_deferred = [this, post, request] { post([this, request] { OnDeferred(request); }); };
  events.on_metadata = [this, post, request](int layer, int64_t begin, int64_t end, bool header,
                                             std::vector<std::byte> bytes) {
    post([this, request, layer, begin, end, header, bytes = std::move(bytes)] {
      OnMetadata(request, layer, begin, end, header, bytes);
    });
  };
  events.on_failed = [this, post, request](Fallback reason, const absl::Status& status) {
    post([this, request, reason, status] { AttemptFailed(request, reason, status); });
  };
  return events;
}

void DecodeEngine::EndAttempt(Request& request) {
  DissolveCohortOf(request);
  if (request.remote.attempt == nullptr) return;
  // Ended first, so that what is counted is all there will be.
  request.remote.attempt->End();
  const PrefillAttempt::Progress progress = request.remote.attempt->progress();
  request.stats.transfer_bytes += progress.bytes;
  trace::Mark(request.spec.trace, trace::Kind::kRelease,
              {0, 0, 0, static_cast<int64_t>(progress.bytes)});
  for (const auto& [path, bytes] : progress.path_bytes) request.stats.path_bytes[path] += bytes;
  request.remote.attempt.reset();
}

void DecodeEngine::CountFallback(Request& request, Fallback reason, std::string_view detail) {
  const std::string_view name = FallbackName(reason);
  request.stats.fallback_reason = std::string(name);
  trace::Mark(request.spec.trace, trace::Kind::kFallback, {static_cast<int64_t>(reason)});
  parts_.metrics->GetCounter("fallback_total", {{"reason", name}}).Add();
  SMARTGEN_LOG(warn, "decode", "fallback reason={} state={}: {}", name,
               RequestStateName(request.state()), detail);
}

void DecodeEngine::AttemptFailed(const RequestPtr& request, Fallback reason,
                                 const absl::Status& status) {
  CountFallback(*request, reason,
                fmt::format("{}: {}", request->remote.address, base::MessageOf(status)));
  request->tried.push_back(request->remote.address);
  if (request->decode_started != base::TimePoint{}) {
    request->stats.decode_seconds += base::ToSeconds(parts_.clock->Now() - request->decode_started);
    request->decode_started = {};
  }
  EndAttempt(*request);
  request->reading.reset();
  // A payload under way may still write into the old pages: going on happens in others.
  request->sequence.reset();
  if (!ReserveRoom(*request)) {
    std::erase(active_, request);
    request->Advance(RequestState::kWaiting);
    waiting_.push_front(request);
    return;
  }
  BeginPrefill(request);
}

void DecodeEngine::OnToken(const RequestPtr& request, const sampling::SampledToken& token) {
  if (request->state() != RequestState::kRemotePrefill) return;  // came twice
  const int vocab = parts_.executor->config().vocab_size;
  if (token.id < 0 || token.id >= vocab) {
    AttemptFailed(
        request, Fallback::kPrefillError,
        base::OutOfRange("token 1: want an id from 0 to {}, got {}", vocab - 1, token.id));
    return;
  }
  const base::TimePoint now = parts_.clock->Now();
  const double seconds = base::ToSeconds(now - request->prefill_started);
  request->stats.prefill_seconds += seconds;
  hot_->prefill_seconds.Observe(seconds);
  request->remote.token_at = request->remote.progress_at = request->remote.metadata_at = now;
  const Mode mode = request->stats.mode;
  if (mode == Mode::kFull || (request->remote.kv_complete && request->reading == nullptr)) {
    request->Advance(RequestState::kReceiving);
  } else if (mode == Mode::kExact && ShipsQueries(*request)) {
    request->reading = std::make_shared<Request::Reading>();
    EnterReading(request);
  } else {
    EnterHandover(request);  // until there is metadata to select by, in modes that select
  }
  if (!Deliver(request, token)) return;
  if (request->state() == RequestState::kReceiving && request->remote.kv_complete) {
    EnterDecoding(request);
  }
}

void DecodeEngine::OnDone(const RequestPtr& request, bool transfer, double seconds) {
  const int64_t computed = request->remote.prompt_end - request->remote.cached;
  placement_.ComputedRemotely(request->remote.address, computed, request->remote.cached, seconds);
  const RequestState state = request->state();
  const bool waits = state == RequestState::kReceiving || state == RequestState::kHandover ||
                     state == RequestState::kReading;
  if (transfer || !waits) return;
  AttemptFailed(
      request, Fallback::kPrefillError,
      base::Internal("the prefill side ended the transfer after a token that ends nothing here"));
}

void DecodeEngine::NoteAllLocal(Request& request) {
  if (request.stats.all_local_seconds > 0) return;
  trace::Mark(request.spec.trace, trace::Kind::kAllLocal);
  request.stats.all_local_seconds = base::ToSeconds(parts_.clock->Now() - request.arrival);
}

void DecodeEngine::OnComplete(const RequestPtr& request) {
  request->remote.kv_complete = true;
  NoteAllLocal(*request);
  const bool speculative = request->stats.mode == Mode::kSmartGen &&
                           request->spec.transfer.speculation &&
                           request->state() != RequestState::kRemotePrefill;
  if (speculative) {
    hot_->speculative_iterations.Observe(
        static_cast<double>(request->length() - 1 - request->remote.prompt_end));
  }
  if (request->state() == RequestState::kReceiving) EnterDecoding(request);
}

void DecodeEngine::EnterDecoding(const RequestPtr& request) {
  const base::TimePoint now = parts_.clock->Now();
  if (request->state() == RequestState::kReceiving) {
    const double exposed = base::ToSeconds(now - request->remote.token_at);
    request->stats.transfer_exposed_seconds += exposed;
    hot_->exposed_seconds.Observe(exposed);
    request->decode_started = now;
  }
  hot_->remote_tokens.Add(
      static_cast<double>(request->remote.prompt_end - request->sequence->prefix_tokens()));
  EndAttempt(*request);
  // The prompt's pages alone: what was made under a selection must serve nobody else.
  parts_.prefix_cache->Insert(std::span<const int32_t>(request->tokens)
                                  .first(static_cast<size_t>(request->remote.prompt_end)),
                              *request->sequence);
  if (request->reading != nullptr) {
    request->reading->reader.reset();
    request->reading->read.remote = nullptr;
    request->reading->read.ship_end = 0;
    if (request->reading->selector == nullptr) request->reading.reset();
  }
  request->Advance(RequestState::kDecoding);
}

void DecodeEngine::WatchAttempts() {
  const base::TimePoint now = parts_.clock->Now();
  const std::vector<RequestPtr> active = active_;
  for (const auto& request : active) {
    auto& remote = request->remote;
    if (remote.attempt == nullptr) continue;
    if (remote.started && now - remote.renewed_at > remote.attempt->lease() / 3) {
      remote.attempt->RenewLease();
      remote.renewed_at = now;
    }
    if (request->state() == RequestState::kHandover) WatchHandover(request, now);
    if (request->state() == RequestState::kHandover) WatchMetadata(request, now);
    const RequestState state = request->state();
    if (state == RequestState::kReceiving || state == RequestState::kHandover) {
      WatchTransfer(request, now);
    } else if (state == RequestState::kReading) {
      WatchRest(request, now);
    }
  }
}

void DecodeEngine::WatchTransfer(const RequestPtr& request, base::TimePoint now) {
  auto& remote = request->remote;
  // The link may be as slow as the plan has it; one that is not as planned has its time beyond.
  const double plan = remote.plan.transfer_seconds;  // may be no number
  const base::Duration planned =
      2 * base::FromSeconds(plan > 0 ? std::min(plan, kMaxPlannedSeconds) : 0);
  if (request->state() == RequestState::kReceiving &&
      now - remote.token_at > options_.transfer_timeout + planned) {
    AttemptFailed(request, Fallback::kTransferTimeout,
                  base::DeadlineExceeded("KV was not complete {:g} s after the token",
                                         base::ToSeconds(now - remote.token_at)));
    return;
  }
  if (!Stalled(*request, now)) return;
  if (request->state() == RequestState::kHandover) FetchBorn(request);
  if (remote.fetches >= options_.max_fetches) {
    AttemptFailed(request, Fallback::kTransferStalled,
                  base::DataLoss("KV did not come though asked for {} times", remote.fetches));
    return;
  }
  AskForMissing(*request, now);
}

void DecodeEngine::WatchRest(const RequestPtr& request, base::TimePoint now) {
  const auto& remote = request->remote;
  if (!remote.sent || remote.kv_complete || !Stalled(*request, now)) return;
  if (remote.fetches < options_.max_fetches) AskForMissing(*request, now);
}

bool DecodeEngine::Stalled(Request& request, base::TimePoint now) {
  auto& remote = request.remote;
  const PrefillAttempt::Progress progress = remote.attempt->progress();
  if (progress.bytes != remote.progress_bytes) {
    remote.progress_bytes = progress.bytes;
    remote.progress_at = now;
    remote.pairing_bytes = progress.pairing_bytes;
    remote.pairing_at = now;
    remote.fetches = 0;
    return false;
  }
  if (progress.pairing_bytes != remote.pairing_bytes) {
    remote.pairing_bytes = progress.pairing_bytes;
    remote.pairing_at = now;
  }
  const bool quiet =
      remote.sent && now - std::max(remote.pairing_at, remote.progress_at) > options_.stall;
  return quiet || now - remote.progress_at > kPatience * options_.stall;
}

void DecodeEngine::AskForMissing(Request& request, base::TimePoint now) {
  auto& remote = request.remote;
  ++remote.fetches;
  remote.progress_at = now;
  parts_.metrics->GetCounter("fallback_total", {{"reason", "kv_missing"}}).Add();
  SMARTGEN_LOG(warn, "decode", "KV stalled from {}: asking again ({} of {})", remote.address,
               remote.fetches, options_.max_fetches);
  remote.attempt->FetchMissing();
}

}  // namespace smartgen::decode_server
