#include "gateway/gateway.h"

#include <algorithm>
#include <array>
#include <boost/asio/thread_pool.hpp>

#include "common/base/log.h"
#include "gateway/http/server.h"
#include "gateway/openai/response.h"
#include "gateway/readiness.h"
#include "gateway/stream/generation.h"

namespace smartgen::gateway {
namespace {

namespace asio = boost::asio;

// How long streams that were told to end may take for their last words.
constexpr auto kLastWords = std::chrono::seconds(2);
// Waits are cut into pieces so that a missed notification costs no more than this.
constexpr auto kWaitPiece = std::chrono::milliseconds(200);

// In time that does not tell how many characters were right.
bool SameSecret(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i] ^ b[b.empty() ? 0 : i % b.size()]);
  }
  return difference == 0;
}

bool EqualIgnoringCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return tolower(x) == tolower(y); });
}

ApiError NotFound(const std::string& path) {
  ApiError error = WithCode(BadRequest("", "There is no route " + path), "not_found");
  error.status = 404;
  return error;
}

HttpResponse Unsupported(std::string message) {
  ApiError error = WithCode(BadRequest("", std::move(message)), "unsupported_media_type");
  error.status = 415;
  return ErrorResponse(error);
}

class GatewayImpl final : public Gateway {
 public:
  GatewayImpl(Options options, ServedModel model, metrics::Metrics* metrics,
              const base::Clock* clock)
      : options_(std::move(options)),
        model_(std::move(model)),
        clock_(clock),
        metrics_(metrics),
        workers_(static_cast<size_t>(options_.worker_threads)) {}
  ~GatewayImpl() override { StopAll(); }

  absl::Status Init() {
    Router::Options router;
    router.decode = options_.decode;
    router.prefill = options_.prefill;
    router.model_fingerprint = model_.fingerprint;
    router.client.security = options_.security;
    router.poll_interval = options_.poll_interval;
    ASSIGN_OR_RETURN(router_, Router::Start(std::move(router), metrics_.all(), clock_));
    readiness_ = std::make_unique<Readiness>(
        Readiness::Options{options_.probe_interval, options_.probe_retry, options_.probe_timeout},
        &model_, router_.get(), &metrics_, clock_);
    FillContext();

    HttpServer::Handlers handlers;
    handlers.check_head = [this](const HttpRequest& request) { return CheckHead(request); };
    handlers.handle = [this](const HttpRequest& request, Exchange& exchange) {
      return Handle(request, exchange);
    };
    handlers.on_answer = [this](const HttpRequest& request, int status) {
      if (request.path.compare(0, 4, "/v1/") == 0) metrics_.CountAnswer(status);
    };
    ASSIGN_OR_RETURN(server_, HttpServer::Start(ServerOptions(), std::move(handlers), clock_));
    readiness_->Start(server_->executor());
    SMARTGEN_LOG(info, "gateway", "serving {} on {} (port {}), decode {}", model_.name,
                 options_.listen, server_->port(), fmt::join(options_.decode, ", "));
    return absl::OkStatus();
  }

  int port() const override { return server_->port(); }
  bool ready() const override { return !draining_ && readiness_->ready(); }
  int64_t running() const override { return context_.requests; }

  void BeginDrain() override {
    base::MutexLock lock(mutex_);
    if (draining_) return;
    SMARTGEN_LOG(info, "gateway", "draining: {} requests running, up to {:.0f} s", server_->busy(),
                 base::ToSeconds(options_.shutdown_grace));
    draining_ = true;
    drain_deadline_ = base::Deadline::After(*clock_, options_.shutdown_grace);
    server_->Drain();
    changed_.NotifyAll();
  }

  void Abort() override {
    base::MutexLock lock(mutex_);
    draining_ = true;
    drain_deadline_ = base::Deadline::At({});
    server_->Drain();
    changed_.NotifyAll();
  }

  bool Wait() override {
    bool clean = false;
    {
      base::MutexLock lock(mutex_);
      while (!draining_) changed_.WaitFor(mutex_, kWaitPiece);
      while (server_->busy() > 0 && !drain_deadline_.Expired(*clock_)) {
        // Requests end without a notification: their count is looked at instead.
        changed_.WaitFor(mutex_, std::min<base::Duration>(std::chrono::milliseconds(10),
                                                          drain_deadline_.Remaining(*clock_)));
      }
      clean = server_->busy() == 0;
    }
    if (!clean) {
      SMARTGEN_LOG(warn, "gateway", "cutting {} requests", server_->busy());
      server_->Interrupt();
      const base::Deadline last = base::Deadline::After(*clock_, kLastWords);
      base::MutexLock lock(mutex_);
      while (server_->busy() > 0 && !last.Expired(*clock_)) {
        changed_.WaitFor(mutex_, std::chrono::milliseconds(10));
      }
    }
    StopAll();
    return clean;
  }

 private:
  void FillContext() {
    context_.model = &model_;
    context_.router = router_.get();
    context_.metrics = &metrics_;
    context_.clock = clock_;
    context_.workers = &workers_;
    context_.limits = {model_.tokenizer->vocab_size(), options_.max_choices, options_.max_prompts};
    context_.max_running = options_.max_running;
    context_.request_timeout = options_.request_timeout;
    context_.keepalive_interval = options_.keepalive_interval;
    context_.on_success = [this](const v1::RequestStats& stats, const std::string& decode) {
      readiness_->NoteSuccess(stats, decode);
    };
    context_.on_failure = [this](const absl::Status& status) { readiness_->NoteFailure(status); };
  }

  HttpServer::Options ServerOptions() const {
    HttpServer::Options http;
    http.listen = options_.listen;
    http.io_threads = options_.io_threads;
    http.max_connections = options_.max_connections;
    http.max_body_bytes = options_.max_body_bytes;
    http.max_header_bytes = options_.max_header_bytes;
    http.max_body_bytes_in_flight = options_.max_body_bytes_in_flight;
    http.header_timeout = options_.header_timeout;
    http.body_timeout = options_.body_timeout;
    http.write_timeout = options_.write_timeout;
    http.idle_timeout = options_.idle_timeout;
    http.cors_allow_origin = options_.cors_allow_origin;
    return http;
  }

  // The order matters: nothing may reach the server's executor after it is gone.
  void StopAll() {
    if (stopped_.exchange(true)) return;
    if (readiness_) readiness_->Stop();
    if (server_) server_->Stop();
    if (router_) router_->Stop();
    workers_.join();
    server_.reset();
  }

  // --- routes

  static const char* AllowedMethods(const std::string& path) {
    if (path == "/v1/chat/completions" || path == "/v1/completions") return "POST, OPTIONS";
    if (path == "/v1/models" || path.compare(0, 11, "/v1/models/") == 0 || path == "/metrics" ||
        path == "/health/live" || path == "/health/ready") {
      return "GET, HEAD, OPTIONS";
    }
    return nullptr;
  }

  bool Authorised(const HttpRequest& request) const {
    if (options_.api_key.empty() || request.path.compare(0, 8, "/health/") == 0) return true;
    const std::string_view value = request.authorization;
    constexpr std::string_view kScheme = "Bearer ";
    if (value.size() < kScheme.size() ||
        !EqualIgnoringCase(value.substr(0, kScheme.size()), kScheme)) {
      return false;
    }
    return SameSecret(value.substr(kScheme.size()), options_.api_key);
  }

  std::optional<HttpResponse> CheckHead(const HttpRequest& request) const {
    const char* allowed = AllowedMethods(request.path);
    // A browser's preflight carries no token.
    const bool preflight = request.method == "OPTIONS" && !options_.cors_allow_origin.empty();
    if (!preflight && !Authorised(request)) {
      ApiError error = WithCode(BadRequest("",
                                           "A valid API key is needed: send the header "
                                           "\"Authorization: Bearer KEY\""),
                                "invalid_api_key");
      error.status = 401;
      error.type = "authentication_error";
      return ErrorResponse(error);
    }
    if (allowed == nullptr) return ErrorResponse(NotFound(request.path));
    if (request.method == "OPTIONS") return Preflight(allowed);
    const bool post = allowed[0] == 'P';
    if (post ? request.method != "POST" : request.method != "GET" && request.method != "HEAD") {
      ApiError error = WithCode(BadRequest("", fmt::format("{} allows {}", request.path, allowed)),
                                "method_not_allowed");
      error.status = 405;
      HttpResponse response = ErrorResponse(error);
      response.headers.emplace_back("Allow", allowed);
      return response;
    }
    return post ? CheckPost(request) : std::nullopt;
  }

  std::optional<HttpResponse> CheckPost(const HttpRequest& request) const {
    if (draining_) {
      ApiError error;
      error.status = 503;
      error.message = "The server is shutting down";
      error.type = "server_error";
      error.code = "shutting_down";
      error.retry_after_seconds = 1;
      return ErrorResponse(error);
    }
    // Any web page may send text/plain, a form or nothing of the kind to a server on its reader's
    // machine; JSON it may not.
    std::string_view type = request.content_type;
    type = type.substr(0, type.find(';'));
    while (!type.empty() && type.back() == ' ') type.remove_suffix(1);
    const bool encoded =
        !request.content_encoding.empty() && request.content_encoding != "identity";
    if (encoded) return Unsupported("Content-Encoding is not supported");
    if (EqualIgnoringCase(type, "application/json")) return std::nullopt;
    return Unsupported(
        "The request's Content-Type must be application/json: send the header \"Content-Type: "
        "application/json\" (curl: -H 'Content-Type: application/json')");
  }

  HttpResponse Preflight(const char* allowed) const {
    HttpResponse response;
    response.status = 204;
    response.headers.emplace_back("Allow", allowed);
    if (!options_.cors_allow_origin.empty()) {
      response.headers.emplace_back("Access-Control-Allow-Methods", allowed);
      response.headers.emplace_back("Access-Control-Allow-Headers",
                                    "*, Authorization, Content-Type");
      response.headers.emplace_back("Access-Control-Max-Age", "600");
    }
    return response;
  }

  asio::awaitable<void> Handle(const HttpRequest& request, Exchange& exchange) {
    if (request.path == "/v1/chat/completions") {
      co_await ServeGeneration(context_, Api::kChat, request, exchange);
    } else if (request.path == "/v1/completions") {
      co_await ServeGeneration(context_, Api::kCompletions, request, exchange);
    } else {
      co_await exchange.Respond(Answer(request));
    }
  }

  HttpResponse Answer(const HttpRequest& request) {
    if (request.path == "/health/live") return JsonResponse(200, Json{{"status", "alive"}});
    if (request.path == "/health/ready") {
      return JsonResponse(ready() ? 200 : 503, readiness_->Report(draining_));
    }
    if (request.path == "/metrics") {
      HttpResponse response;
      response.content_type = "text/plain; version=0.0.4; charset=utf-8";
      response.body = metrics_.all()->Serialize();
      return response;
    }
    const int64_t served = router_->context_length();
    const Json model =
        ModelObject(model_.name, model_.created,
                    served > 0 ? std::min(served, model_.context_length) : model_.context_length);
    if (request.path == "/v1/models") return JsonResponse(200, ModelList({model}));
    if (request.path == "/v1/models/" + model_.name) return JsonResponse(200, model);
    ApiError error =
        BadRequest("model", fmt::format("The model {} is not served here; {} is",
                                        Dump(Json(request.path.substr(11))), model_.name));
    error.status = 404;
    return ErrorResponse(WithCode(error, "model_not_found"));
  }

  const Options options_;
  const ServedModel model_;
  const base::Clock* const clock_;
  GatewayMetrics metrics_;
  asio::thread_pool workers_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<Readiness> readiness_;
  GenerationContext context_;
  std::unique_ptr<HttpServer> server_;
  std::atomic<bool> draining_{false};
  std::atomic<bool> stopped_{false};
  base::Mutex mutex_;
  base::CondVar changed_;
  base::Deadline drain_deadline_ ABSL_GUARDED_BY(mutex_) = base::Deadline::Infinite();
};

}  // namespace

absl::StatusOr<std::unique_ptr<Gateway>> Gateway::Start(Options options, ServedModel model,
                                                        metrics::Metrics* metrics,
                                                        const base::Clock* clock) {
  RETURN_IF_ERROR(options.Check());
  auto gateway =
      std::make_unique<GatewayImpl>(std::move(options), std::move(model), metrics, clock);
  RETURN_IF_ERROR(gateway->Init());
  return std::unique_ptr<Gateway>(std::move(gateway));
}

}  // namespace smartgen::gateway
