#include "gateway/stream/generation.h"

#include <algorithm>
#include <optional>
#include <set>
#include <variant>

#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/rpc/convert.h"
#include "gateway/http/mailbox.h"
#include "gateway/openai/response.h"
#include "gateway/prepare.h"
#include "gateway/stream/choice.h"
#include "gateway/stream/slot.h"

namespace smartgen::gateway {
namespace {

namespace asio = boost::asio;

// Events that are ready together go out in one write, up to this size.
constexpr size_t kMaxWrite = 64 << 10;

struct Event {
  using Preparation = std::shared_ptr<Result<PreparedRequest>>;
  int slot = -1;
  int attempt = 0;
  std::variant<Interruption, Preparation, v1::GenerateEvent, absl::Status> what;
};
using Inbox = Mailbox<Event>;

ApiError Overloaded(int64_t limit) {
  ApiError error;
  error.status = 429;
  error.message = fmt::format("The server already runs as many generations as it may ({})", limit);
  error.type = "rate_limit_error";
  error.code = "too_many_requests";
  error.retry_after_seconds = 1;
  return error;
}

ApiError ShuttingDown() {
  ApiError error;
  error.status = 503;
  error.message = "The server is shutting down";
  error.type = "server_error";
  error.code = "shutting_down";
  error.retry_after_seconds = 1;
  return error;
}

// What one instance has no room or no way for, another may have.
bool IsRefusal(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsOutOfRange(status) ||
         absl::IsFailedPrecondition(status);
}

// A request must not be able to end the process, whatever a library throws at it.
Event::Preparation PrepareGuarded(Api api, const std::string& body, const ServedModel& model,
                                  const RequestLimits& limits, int64_t context_length) {
  try {
    return std::make_shared<Result<PreparedRequest>>(
        PrepareRequest(api, body, model, limits, context_length));
  } catch (const std::exception& e) {
    SMARTGEN_LOG(error, "stream", "preparing a request failed: {}", e.what());
    return std::make_shared<Result<PreparedRequest>>(
        FromBackendStatus(base::Internal("The server failed to prepare this request")));
  }
}

// Gives back what a request holds of the gateway's limits.
class Admission {
 public:
  explicit Admission(GenerationContext& context) : context_(context) { ++context_.requests; }
  ~Admission() {
    context_.running -= held_;
    if (running_) context_.metrics->running.Add(-1);
    StopWaiting();
    --context_.requests;
  }
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  bool Take(int64_t choices) {
    if (context_.running.fetch_add(choices) + choices > context_.max_running) {
      context_.running -= choices;
      return false;
    }
    held_ += choices;
    if (!running_) {
      running_ = waiting_ = true;
      context_.metrics->running.Add(1);
      context_.metrics->waiting.Add(1);
    }
    return true;
  }
  void StopWaiting() {
    if (waiting_) context_.metrics->waiting.Add(-1);
    waiting_ = false;
  }

 private:
  GenerationContext& context_;
  int64_t held_ = 0;
  bool running_ = false;
  bool waiting_ = false;
};

class Generation {
 public:
  Generation(GenerationContext& context, Api api, const HttpRequest& request, Exchange& exchange)
      : context_(context),
        api_(api),
        http_(request),
        exchange_(exchange),
        admission_(context),
        inbox_(std::make_shared<Inbox>(exchange.executor())),
        deadline_(base::Deadline::After(*context.clock, context.request_timeout)) {}
  ~Generation() { CancelAll(); }

  asio::awaitable<void> Run() {
    exchange_.OnInterruption([inbox = inbox_](Interruption what) { inbox->Push({-1, 0, what}); });
    if (!admission_.Take(1)) {
      Fail(Overloaded(context_.max_running));
    } else if (co_await Prepare() && Start()) {
      co_await Loop();
    }
    CancelAll();
    co_await Conclude();
  }

 private:
  // --- preparing

  asio::awaitable<bool> Prepare() {
    const base::TimePoint begin = context_.clock->Now();
    int64_t length = context_.router->context_length();
    if (length <= 0) length = context_.model->context_length;
    context_length_ = std::min(length, context_.model->context_length);
    // The body is copied: the job may outlive this coroutine if the client leaves.
    asio::post(*context_.workers,
               [inbox = inbox_, api = api_, body = http_.body, model = context_.model,
                limits = context_.limits, length = context_length_] {
                 inbox->Push({-1, 0, PrepareGuarded(api, body, *model, limits, length)});
               });
    while (!failed() && !prepared_) {
      auto event = co_await inbox_->Pop(deadline_.Remaining(*context_.clock));
      if (!event) {
        Fail(FromBackendStatus(base::DeadlineExceeded("The request took too long to prepare")));
      } else if (const auto* result = std::get_if<Event::Preparation>(&event->what)) {
        if ((*result)->ok()) {
          prepared_ = std::move((*result)->value());
        } else {
          Fail((*result)->error());
        }
      } else if (const auto* what = std::get_if<Interruption>(&event->what)) {
        OnInterruption(*what);
      }
    }
    context_.metrics->ObserveTokenize(base::ToSeconds(context_.clock->Now() - begin));
    co_return !failed();
  }

  // --- starting

  bool Start() {
    ParsedRequest& request = prepared_->request;
    const int choices = static_cast<int>(prepared_->prompts.size()) * request.n;
    if (choices > context_.max_running) {
      Fail(BadRequest("n", fmt::format("The request asks for {} choices (n times the prompts); the "
                                       "server runs {} at most",
                                       choices, context_.max_running)));
      return false;
    }
    if (choices > 1 && !admission_.Take(choices - 1)) {
      Fail(Overloaded(context_.max_running));
      return false;
    }
    if (!request.has_seed) request.sampling.seed = base::RandomUint64();
    const auto eos = context_.model->tokenizer->eos_ids();
    request.sampling.eos_ids.assign(eos.begin(), eos.end());
    head_.api = api_;
    head_.id = base::NewRequestId(api_ == Api::kChat ? "chatcmpl-" : "cmpl-");
    head_.model = context_.model->name;
    head_.created = context_.clock->UnixSeconds();
    head_.usage_wanted = request.include_usage;
    head_.logprobs_wanted = request.sampling.logprobs >= 0;
    head_.token_ids_wanted = request.return_token_ids;
    slots_.reserve(static_cast<size_t>(choices));
    for (int i = 0; i < choices; ++i) AddSlot(i);
    for (Slot& slot : slots_) {
      if (!slot.done && !failed()) StartCall(slot);
    }
    return !failed();
  }

  void AddSlot(int index) {
    const ParsedRequest& request = prepared_->request;
    const PreparedPrompt& prompt = prepared_->prompts[static_cast<size_t>(index / request.n)];
    usage_.prompt_tokens += index % request.n == 0 ? static_cast<int64_t>(prompt.ids.size()) : 0;
    Choice::Options options;
    options.tokenizer = context_.model->tokenizer.get();
    options.stop = request.stop;
    options.min_tokens = request.sampling.min_tokens;
    if (!request.sampling.ignore_eos) options.eos_ids = request.sampling.eos_ids;
    options.logprobs = head_.logprobs_wanted;
    options.text_offset = CountCharacters(prompt.echo);
    Slot slot(index, Choice(std::move(options)));
    slot.answer.index = index;
    slot.max_tokens =
        TokenBudget(request, static_cast<int64_t>(prompt.ids.size()), context_length_);
    Collect(slot, {prompt.echo, {}});
    slots_.push_back(std::move(slot));
    if (slots_.back().max_tokens <= 0) FinishSlot(slots_.back(), FinishReason::kLength);
  }

  v1::GenerateRequest BackendRequest(const Slot& slot) const {
    const ParsedRequest& request = prepared_->request;
    const PreparedPrompt& prompt = prepared_->prompts[static_cast<size_t>(slot.index / request.n)];
    v1::GenerateRequest out;
    out.set_request_id(head_.id);
    out.mutable_prompt_ids()->Add(prompt.ids.begin(), prompt.ids.end());
    const auto& generated = slot.choice.tokens();
    out.mutable_generated_ids()->Add(generated.begin(), generated.end());
    sampling::SamplingParams sampling = request.sampling;
    sampling.seed = SeedOfChoice(sampling.seed, slot.index % request.n);
    rpc::ToProto(sampling, out.mutable_sampling());
    out.set_max_tokens(slot.max_tokens);
    if (request.mode) out.set_mode(rpc::ToProto(*request.mode));
    SetTransfer(request.transfer, *out.mutable_transfer());
    out.set_trace(request.trace);
    return out;
  }

  void StartCall(Slot& slot) {
    ++slot.attempt;
    BackendCall::Events events;
    const auto push = [inbox = inbox_, index = slot.index, attempt = slot.attempt](auto what) {
      inbox->Push({index, attempt, std::move(what)});
    };
    events.on_event = [push](v1::GenerateEvent event) { push(std::move(event)); };
    events.on_end = [push](absl::Status status) { push(std::move(status)); };
    auto call =
        context_.router->Generate(BackendRequest(slot), slot.tried, deadline_, std::move(events));
    if (!call.ok()) {
      // Where an instance has failed, its own error says more than "none is left".
      FailBackend(slot.last_error.ok() ? call.status() : slot.last_error);
      return;
    }
    slot.call = std::move(*call);
    slot.tried.insert(slot.call->address());
  }

  // --- the loop

  asio::awaitable<void> Loop() {
    while (!failed() && unfinished() > 0) {
      const base::Duration patience =
          std::min(context_.keepalive_interval, deadline_.Remaining(*context_.clock));
      auto event = co_await inbox_->Pop(patience);
      if (!event) {
        if (deadline_.Expired(*context_.clock)) {
          Fail(FromBackendStatus(base::DeadlineExceeded("The request took too long")));
        } else {
          co_await KeepAlive();
        }
        continue;
      }
      while (event && !failed()) {
        Handle(*event);
        if (out_.size() >= kMaxWrite) break;
        event = inbox_->TryPop();
      }
      co_await FlushOut();
      ObserveFirstTokens();
    }
  }

  asio::awaitable<void> KeepAlive() {
    // Until a decode instance has taken the request, its refusal should still become a status.
    const bool admitted = std::any_of(slots_.begin(), slots_.end(),
                                      [](const Slot& slot) { return slot.admitted || slot.done; });
    if (!prepared_->request.stream || !(begun_ || admitted)) co_return;
    out_ += kSseKeepAlive;
    co_await FlushOut();
  }

  void Handle(Event& event) {
    if (const auto* what = std::get_if<Interruption>(&event.what)) {
      OnInterruption(*what);
      return;
    }
    if (event.slot < 0) return;
    Slot& slot = slots_[static_cast<size_t>(event.slot)];
    if (event.attempt != slot.attempt || slot.done) return;
    if (auto* message = std::get_if<v1::GenerateEvent>(&event.what)) {
      slot.call->Consumed();
      OnBackendEvent(slot, *message);
    } else if (const auto* status = std::get_if<absl::Status>(&event.what)) {
      OnBackendEnd(slot, *status);
    }
  }

  void OnInterruption(Interruption what) {
    if (what == Interruption::kClientGone) {
      client_gone_ = true;
    } else {
      Fail(ShuttingDown());
    }
  }

  void OnBackendEvent(Slot& slot, const v1::GenerateEvent& event) {
    switch (event.event_case()) {
      case v1::GenerateEvent::kAdmitted:
        slot.admitted = true;
        break;
      case v1::GenerateEvent::kToken:
        OnToken(slot, event.token());
        break;
      case v1::GenerateEvent::kFinished:
        slot.stats = event.finished().stats();
        FinishSlot(slot, event.finished().reason() == v1::Finished::REASON_STOP
                             ? FinishReason::kStop
                             : FinishReason::kLength);
        break;
      default:
        SMARTGEN_LOG(warn, "stream", "{} sent an event of an unknown kind", slot.call->address());
    }
  }

  void OnToken(Slot& slot, const v1::GeneratedToken& message) {
    const auto token = rpc::FromProto(message);
    if (!token.ok()) {
      FailBackend(base::Internal("{} sent a bad token: {}", slot.call->address(),
                                 base::MessageOf(token.status())));
      return;
    }
    NoteTokenTime(slot);
    context_.metrics->generated_tokens.Add();
    Collect(slot, slot.choice.Push(*token));
    if (slot.choice.stopped()) FinishSlot(slot, FinishReason::kStop);
  }

  void NoteTokenTime(Slot& slot) {
    const base::TimePoint now = context_.clock->Now();
    const size_t count = slot.choice.tokens().size();
    if (count == 0) {
      slot.call->PrefillEnded();
      admission_.StopWaiting();
      slot.ttft_due = true;
    } else if (count == 1) {
      slot.ttst_due = true;
    } else {
      context_.metrics->tbt.Observe(base::ToSeconds(now - slot.last_token));
    }
    slot.last_token = now;
  }

  // After the write that carries it: what the client sees.
  void ObserveFirstTokens() {
    const base::TimePoint now = context_.clock->Now();
    const double since_arrival = base::ToSeconds(now - http_.arrival);
    for (Slot& slot : slots_) {
      if (std::exchange(slot.ttft_due, false)) {
        slot.first_shown = now;
        slot.ttft_seconds = since_arrival;
        context_.metrics->ttft.Observe(since_arrival);
      }
      if (std::exchange(slot.ttst_due, false)) {
        slot.ttst_seconds = since_arrival;
        context_.metrics->ttst_gap.Observe(base::ToSeconds(now - slot.first_shown));
        context_.metrics->ttst_e2e.Observe(since_arrival);
      }
    }
  }

  void OnBackendEnd(Slot& slot, const absl::Status& status) {
    // The instance died between the last token and saying so.
    if (slot.choice.saw_eos()) return FinishSlot(slot, FinishReason::kStop);
    const auto made = static_cast<int64_t>(slot.choice.tokens().size());
    if (made >= slot.max_tokens) return FinishSlot(slot, FinishReason::kLength);

    const std::string& address = slot.call->address();
    slot.last_error =
        status.ok() ? base::Unavailable("{} ended the stream early", address) : status;
    // CANCELLED that we did not ask for: the instance cuts its calls as it stops.
    const bool elsewhere = absl::IsUnavailable(slot.last_error) || absl::IsCancelled(status) ||
                           (made == 0 && IsRefusal(status));
    if (!elsewhere || slot.attempt >= context_.max_attempts) return FailBackend(slot.last_error);
    SMARTGEN_LOG(warn, "stream", "{}: {} after {} tokens, trying another decode instance: {}",
                 head_.id, address, made, base::MessageOf(slot.last_error));
    StartCall(slot);
    if (failed()) return;
    context_.metrics->CountFallback(made > 0 ? "decode_resumed" : "decode_retried");
    if (made > 0) ++slot.resumptions;
  }

  // --- output

  void Collect(Slot& slot, Choice::Output output) {
    if (output.empty()) return;
    if (prepared_->request.stream) {
      BeginChoice(slot);
      out_ += SseData(TextChunk(head_, slot.index, output.text, output.logprobs));
    } else {
      slot.answer.text += output.text;
      std::move(output.logprobs.begin(), output.logprobs.end(),
                std::back_inserter(slot.answer.logprobs));
    }
  }

  void BeginChoice(Slot& slot) {
    if (slot.role_sent || api_ != Api::kChat) return;
    slot.role_sent = true;
    out_ += SseData(RoleChunk(head_, slot.index));
  }

  void FinishSlot(Slot& slot, FinishReason reason) {
    Collect(slot, slot.choice.Finish(reason));
    slot.done = true;
    // A stop string that stood in what was held back wins over the backend's reason.
    if (slot.choice.reason() != FinishReason::kNone) reason = slot.choice.reason();
    slot.answer.finish_reason = reason;
    slot.answer.token_ids = slot.choice.tokens();
    if (prepared_->request.stream) {
      BeginChoice(slot);
      out_ += SseData(FinishChunk(head_, slot.index, reason, slot.choice.tokens()));
    }
    usage_.completion_tokens += std::max<int64_t>(static_cast<int64_t>(slot.choice.tokens().size()),
                                                  slot.stats.generated_tokens());
    if (!slot.call) return;
    slot.call->Cancel();
    context_.metrics->e2e.Observe(base::ToSeconds(context_.clock->Now() - http_.arrival));
    if (slot.stats.mode() != v1::MODE_UNSPECIFIED) {
      usage_.cached_tokens +=
          slot.index % prepared_->request.n == 0 ? slot.stats.cached_tokens() : 0;
      context_.metrics->ObserveStages(slot.stats);
    }
    context_.on_success(slot.stats, slot.call->address());
  }

  // Sends what has gathered.
  asio::awaitable<void> FlushOut() {
    // What failed before its first byte is answered with a status.
    if (out_.empty() || client_gone_ || (error_ && !begun_)) co_return;
    if (!begun_) {
      begun_ = true;
      HttpResponse head;
      head.content_type = "text/event-stream; charset=utf-8";
      head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
      if (!co_await exchange_.BeginStream(std::move(head))) client_gone_ = true;
    }
    if (!client_gone_ && !co_await exchange_.Write(std::exchange(out_, {}))) client_gone_ = true;
  }

  asio::awaitable<void> Conclude() {
    if (client_gone_) {
      if (!begun_) context_.metrics->CountAnswer(499);
      co_return;
    }
    if (error_) {
      if (!begun_) {
        co_await exchange_.Respond(ErrorResponse(*error_));
        co_return;
      }
      exchange_.CloseAfterwards();
      out_ += SseData(ToJson(*error_));
    } else if (!prepared_->request.stream) {
      co_await exchange_.Respond(JsonResponse(200, Whole()));
      co_return;
    } else {
      if (head_.usage_wanted) out_ += SseData(UsageChunk(head_, usage_, Info()));
      out_ += kSseDone;
    }
    co_await FlushOut();
    co_await exchange_.EndStream();
  }

  Json Whole() {
    std::vector<FinishedChoice> choices;
    for (Slot& slot : slots_) choices.push_back(std::move(slot.answer));
    return WholeResponse(head_, choices, usage_, Info());
  }

  ServingInfo Info() const { return ServingInfoOf(slots_.front()); }

  // --- the end

  bool failed() const { return error_.has_value() || client_gone_; }
  int64_t unfinished() const {
    return std::count_if(slots_.begin(), slots_.end(), [](const Slot& s) { return !s.done; });
  }
  void Fail(ApiError error) {
    if (!error_) error_ = std::move(error);
  }
  void FailBackend(const absl::Status& status) {
    ApiError error = FromBackendStatus(status);
    if (error.status >= 500) {
      SMARTGEN_LOG(warn, "stream", "{}: failed: {}", head_.id, base::MessageOf(status));
      context_.on_failure(status);
    }
    Fail(std::move(error));
  }
  void CancelAll() {
    for (Slot& slot : slots_) {
      if (slot.call) slot.call->Cancel();
    }
  }

  GenerationContext& context_;
  const Api api_;
  const HttpRequest& http_;
  Exchange& exchange_;
  Admission admission_;
  const std::shared_ptr<Inbox> inbox_;
  const base::Deadline deadline_;
  int64_t context_length_ = 0;
  std::optional<PreparedRequest> prepared_;
  ResponseHead head_;
  std::vector<Slot> slots_;
  Usage usage_;
  std::string out_;  // events to be written
  bool begun_ = false;
  bool client_gone_ = false;
  std::optional<ApiError> error_;
};

}  // namespace

asio::awaitable<void> ServeGeneration(GenerationContext& context, Api api,
                                      const HttpRequest& request, Exchange& exchange) {
  Generation generation(context, api, request, exchange);
  co_await generation.Run();
}

}  // namespace smartgen::gateway
