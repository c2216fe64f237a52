#include "gateway/http/connection.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>

#include "common/base/log.h"

namespace smartgen::gateway {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
// What a client may send ahead while its request is handled. Who sends more gets this one answer
// and the connection's end; the rest is thrown away, since a close is only seen behind what stands
// before it.
constexpr size_t kMaxReadAhead = 64 << 10;
// After an early refusal: how long and how much of a body is still taken off the wire, so that the
// client reads the answer before it sees a reset.
constexpr auto kLingerTime = std::chrono::seconds(1);
constexpr size_t kLingerBytes = 1 << 20;

ApiError HttpError(int status, std::string code, std::string message) {
  ApiError error;
  error.status = status;
  error.message = std::move(message);
  error.code = std::move(code);
  return error;
}

// A share of a counter, given back at the end of the scope, whichever way that comes.
class Share {
 public:
  Share(std::atomic<int64_t>& counter, int64_t amount) : counter_(counter), amount_(amount) {
    total_ = counter_ += amount_;
  }
  ~Share() { counter_ -= amount_; }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  int64_t total() const { return total_; }  // of all, when this was taken
  void ShrinkTo(int64_t amount) {
    counter_ -= amount_ - amount;
    amount_ = amount;
  }

 private:
  std::atomic<int64_t>& counter_;
  int64_t amount_;
  int64_t total_ = 0;
};

std::string Text(boost::beast::string_view view) { return std::string(view.data(), view.size()); }

}  // namespace

Connection::Connection(Socket socket, std::shared_ptr<ConnectionContext> context)
    : context_(std::move(context)),
      socket_(std::move(socket)),
      buffer_(static_cast<size_t>(context_->options.max_header_bytes) + kMaxReadAhead + (64 << 10)),
      guard_(socket_.get_executor()),
      watch_ended_(socket_.get_executor()) {
  ++context_->connections;
}

Connection::~Connection() { --context_->connections; }

void Connection::Arm(base::Duration duration, OnTimeout action) {
  timed_out_ = false;
  guard_.expires_after(duration);
  guard_.async_wait(
      [self = shared_from_this(), generation = ++guard_generation_, action](error_code error) {
        if (error || generation != self->guard_generation_) return;
        self->timed_out_ = true;
        error_code ignored;
        if (action == OnTimeout::kClose) {
          self->socket_.close(ignored);
        } else {
          self->socket_.cancel(ignored);
        }
      });
}

void Connection::Disarm() {
  ++guard_generation_;
  guard_.cancel();
}

void Connection::CloseIfIdle() {
  asio::dispatch(socket_.get_executor(), [self = shared_from_this()] {
    error_code ignored;
    if (self->idle_) self->socket_.close(ignored);
  });
}

void Connection::Close() {
  asio::dispatch(socket_.get_executor(), [self = shared_from_this()] {
    error_code ignored;
    self->socket_.close(ignored);
  });
}

void Connection::Interrupt() {
  asio::dispatch(socket_.get_executor(), [self = shared_from_this()] {
    self->shutdown_ = true;
    self->TellInterruption(Interruption::kShutdown);
    error_code ignored;
    if (self->reading_body_) self->socket_.cancel(ignored);
  });
}

void Connection::OnInterruption(std::function<void(Interruption)> callback) {
  on_interruption_ = std::move(callback);
  if (client_gone_) TellInterruption(Interruption::kClientGone);
  if (shutdown_) TellInterruption(Interruption::kShutdown);
}

void Connection::TellInterruption(Interruption what) {
  bool& told = what == Interruption::kClientGone ? told_gone_ : told_shutdown_;
  if (told || !on_interruption_) return;
  told = true;
  on_interruption_(what);
}

asio::awaitable<void> Connection::Run() {
  const auto self = shared_from_this();
  Next next = Next::kAnotherRequest;
  try {
    while (next == Next::kAnotherRequest) next = co_await ServeOne();
    if (next == Next::kLinger) co_await Linger();
  } catch (const std::exception& e) {
    SMARTGEN_LOG(error, "http", "connection ended by an exception: {}", e.what());
  }
  Disarm();
  error_code ignored;
  socket_.shutdown(Socket::shutdown_both, ignored);
  socket_.close(ignored);
}

asio::awaitable<bool> Connection::AwaitFirstByte() {
  if (buffer_.size() > 0) co_return true;
  idle_ = true;
  if (any_request_ && context_->draining) co_return false;
  // A fresh connection owes its first byte within the header's time.
  Arm(any_request_ ? context_->options.idle_timeout : context_->options.header_timeout,
      OnTimeout::kClose);
  const auto [error] = co_await socket_.async_wait(Socket::wait_read, kAwait);
  Disarm();
  idle_ = false;
  co_return !error;
}

asio::awaitable<Connection::Next> Connection::ServeOne() {
  if (!co_await AwaitFirstByte()) co_return Next::kClose;
  request_ = HttpRequest{};
  request_.arrival = context_->clock->Now();
  http10_ = keep_alive_ = head_sent_ = streaming_ = complete_ = false;
  told_gone_ = told_shutdown_ = false;

  Parser parser;
  parser.header_limit(static_cast<uint32_t>(context_->options.max_header_bytes));
  parser.body_limit(static_cast<uint64_t>(context_->options.max_body_bytes));
  Arm(context_->options.header_timeout, OnTimeout::kCancel);
  const auto [error, bytes] = co_await http::async_read_header(socket_, buffer_, parser, kAwait);
  Disarm();
  if (error) co_return co_await RefuseUnreadable(error);
  any_request_ = true;
  co_return co_await ReadBodyAndHandle(parser);
}

asio::awaitable<Connection::Next> Connection::RefuseUnreadable(error_code error) {
  std::optional<ApiError> answer;
  if (timed_out_) {
    answer = HttpError(408, "request_timeout", "The request did not arrive in time");
  } else if (shutdown_ && error == asio::error::operation_aborted) {
    answer = HttpError(503, "shutting_down", "The server is shutting down");
    answer->type = "server_error";
    answer->retry_after_seconds = 1;
  } else if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    answer = HttpError(431, "headers_too_large",
                       fmt::format("The request's header is larger than {} bytes",
                                   context_->options.max_header_bytes));
  } else if (error == http::error::body_limit) {
    answer = HttpError(413, "body_too_large",
                       fmt::format("The request's body is larger than {} bytes",
                                   context_->options.max_body_bytes));
  } else if (error.category() == make_error_code(http::error::bad_method).category() &&
             error != http::error::end_of_stream && error != http::error::partial_message) {
    answer =
        HttpError(400, "bad_http", fmt::format("Not a valid HTTP request: {}", error.message()));
  }
  if (!answer) co_return Next::kClose;
  HttpResponse response = ErrorResponse(*answer);
  response.close = true;
  co_await Respond(std::move(response));
  co_return Next::kLinger;
}

asio::awaitable<Connection::Next> Connection::ReadBodyAndHandle(Parser& parser) {
  // Taken before check_head looks whether the server is draining: a drain sees one or the other.
  const Share in_progress(context_->busy, 1);
  const auto& message = parser.get();
  http10_ = message.version() < 11;
  keep_alive_ = message.keep_alive() && !context_->draining;
  request_.method = Text(message.method_string());
  request_.authorization = Text(message[http::field::authorization]);
  request_.content_type = Text(message[http::field::content_type]);
  request_.content_encoding = Text(message[http::field::content_encoding]);
  const bool has_body = !parser.is_done();

  std::optional<HttpResponse> refusal;
  const auto path = DecodePath(std::string_view(message.target().data(), message.target().size()));
  const auto expect = message.find(http::field::expect);
  const bool expects = expect != message.end();
  if (!path || path->empty() || path->front() != '/') {
    refusal = ErrorResponse(HttpError(400, "bad_http", "The request's target is not a valid path"));
  } else if (!http10_ && message.find(http::field::host) == message.end()) {
    refusal = ErrorResponse(HttpError(400, "bad_http", "The Host header is missing"));
  } else {
    request_.path = *path;
    refusal = context_->handlers.check_head(request_);
    if (!refusal && expects && !boost::beast::iequals(expect->value(), "100-continue")) {
      refusal = ErrorResponse(
          HttpError(417, "bad_http", "The only expectation that is understood is 100-continue"));
    }
  }
  if (refusal) {
    // Unread body bytes would be taken for the next request.
    if (has_body) refusal->close = true;
    const bool sent = co_await Respond(std::move(*refusal));
    if (has_body) co_return Next::kLinger;
    if (sent && keep_alive_) co_return Next::kAnotherRequest;
    co_return Next::kClose;
  }
  std::optional<Share> reserved;
  if (has_body) {
    const auto length = parser.content_length();
    reserved.emplace(context_->body_bytes,
                     length ? static_cast<int64_t>(*length) : context_->options.max_body_bytes);
    if (reserved->total() > context_->options.max_body_bytes_in_flight) {
      ApiError busy = HttpError(503, "overloaded", "Too many request bodies are being received");
      busy.retry_after_seconds = 1;
      HttpResponse response = ErrorResponse(busy);
      response.close = true;
      co_await Respond(std::move(response));
      co_return Next::kLinger;
    }
    if (expects && !http10_ && buffer_.size() == 0 &&
        !co_await WriteRaw("HTTP/1.1 100 Continue\r\n\r\n")) {
      co_return Next::kClose;
    }
    error_code error;
    if (!co_await ReadBody(parser, error)) {
      co_return co_await RefuseUnreadable(error);
    }
    request_.body = std::move(parser.get().body());
    // A chunked body's length was not known before.
    reserved->ShrinkTo(static_cast<int64_t>(request_.body.size()));
  }
  co_return co_await Handle(keep_alive_);
}

asio::awaitable<bool> Connection::ReadBody(Parser& parser, error_code& error) {
  if (shutdown_) {
    error = asio::error::operation_aborted;
    co_return false;
  }
  Arm(context_->options.body_timeout, OnTimeout::kCancel);
  reading_body_ = true;
  const auto [read_error, bytes] = co_await http::async_read(socket_, buffer_, parser, kAwait);
  reading_body_ = false;
  Disarm();
  error = read_error;
  co_return !read_error;
}

asio::awaitable<Connection::Next> Connection::Handle(bool keep_alive) {
  watching_ = watch_running_ = true;
  asio::co_spawn(socket_.get_executor(), Watch(), asio::detached);
  co_await CallHandler();
  on_interruption_ = nullptr;
  co_await StopWatch();
  if (!complete_ || client_gone_ || !socket_.is_open()) co_return Next::kClose;
  if (keep_alive_) co_return Next::kAnotherRequest;
  // The client may be sending still, and a reset would take the answer from it.
  co_return keep_alive ? Next::kLinger : Next::kClose;
}

asio::awaitable<void> Connection::CallHandler() {
  bool failed = false;
  try {
    co_await context_->handlers.handle(request_, *this);
  } catch (const std::exception& e) {
    SMARTGEN_LOG(error, "http", "handler of {} failed: {}", request_.path, e.what());
    failed = true;
  }
  if (head_sent_ || client_gone_) co_return;
  if (!failed) SMARTGEN_LOG(error, "http", "handler of {} gave no answer", request_.path);
  ApiError error = HttpError(500, "internal_error", "The server failed to handle this request");
  error.type = "server_error";
  co_await Respond(ErrorResponse(error));
}

asio::awaitable<void> Connection::Watch() {
  const auto self = shared_from_this();
  while (watching_ && !client_gone_) {
    if (buffer_.size() >= kMaxReadAhead) {
      keep_alive_ = false;
      buffer_.consume(buffer_.size());
    }
    const auto [error, bytes] = co_await socket_.async_read_some(buffer_.prepare(4096), kAwait);
    buffer_.commit(bytes);
    if (error && watching_) client_gone_ = true;
  }
  if (client_gone_) TellInterruption(Interruption::kClientGone);
  watch_running_ = false;
  watch_ended_.cancel();
}

asio::awaitable<void> Connection::StopWatch() {
  watching_ = false;
  error_code ignored;
  socket_.cancel(ignored);
  while (watch_running_) {
    // Cancelled when the watch ends; the time is a bound on a lost wake-up, not a wait.
    watch_ended_.expires_after(std::chrono::milliseconds(500));
    co_await watch_ended_.async_wait(kAwait);
  }
}

std::string Connection::FormatHead(const HttpResponse& response, bool stream) const {
  std::string out =
      fmt::format("HTTP/1.1 {} {}\r\n", response.status, ReasonPhrase(response.status));
  if (response.status != 204) out += fmt::format("Content-Type: {}\r\n", response.content_type);
  if (!stream) {
    if (response.status != 204) out += fmt::format("Content-Length: {}\r\n", response.body.size());
  } else if (!http10_) {
    out += "Transfer-Encoding: chunked\r\n";
  }
  out += fmt::format("Connection: {}\r\n", keep_alive_ ? "keep-alive" : "close");
  if (!context_->options.cors_allow_origin.empty()) {
    out += fmt::format("Access-Control-Allow-Origin: {}\r\n", context_->options.cors_allow_origin);
    if (context_->options.cors_allow_origin != "*") out += "Vary: Origin\r\n";
  }
  for (const auto& [name, value] : response.headers) {
    out += fmt::format("{}: {}\r\n", name, value);
  }
  out += "\r\n";
  return out;
}

asio::awaitable<bool> Connection::WriteRaw(std::string data) {
  if (client_gone_ || !socket_.is_open()) co_return false;
  Arm(context_->options.write_timeout, OnTimeout::kClose);
  const auto [error, bytes] = co_await asio::async_write(socket_, asio::buffer(data), kAwait);
  Disarm();
  if (!error) co_return true;
  client_gone_ = true;
  TellInterruption(Interruption::kClientGone);
  co_return false;
}

asio::awaitable<bool> Connection::Respond(HttpResponse response) {
  if (head_sent_) co_return false;
  head_sent_ = complete_ = true;
  if (response.close || context_->draining) keep_alive_ = false;
  if (context_->handlers.on_answer) context_->handlers.on_answer(request_, response.status);
  std::string data = FormatHead(response, false);
  if (request_.method != "HEAD" && response.status != 204) data += response.body;
  co_return co_await WriteRaw(std::move(data));
}

asio::awaitable<bool> Connection::BeginStream(HttpResponse head) {
  if (head_sent_) co_return false;
  head_sent_ = streaming_ = true;
  // Without chunks the end of the connection is the end of the stream.
  if (http10_ || head.close || context_->draining) keep_alive_ = false;
  if (context_->handlers.on_answer) context_->handlers.on_answer(request_, head.status);
  co_return co_await WriteRaw(FormatHead(head, true));
}

asio::awaitable<bool> Connection::Write(std::string data) {
  if (!streaming_ || data.empty()) co_return streaming_;
  if (!http10_) data = fmt::format("{:x}\r\n{}\r\n", data.size(), data);
  co_return co_await WriteRaw(std::move(data));
}

asio::awaitable<bool> Connection::EndStream() {
  if (!streaming_) co_return false;
  streaming_ = false;
  const bool sent = http10_ || co_await WriteRaw("0\r\n\r\n");
  complete_ = sent;
  co_return sent;
}

asio::awaitable<void> Connection::Linger() {
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  Arm(kLingerTime, OnTimeout::kClose);
  std::vector<char> sink(16 << 10);
  for (size_t taken = 0; taken < kLingerBytes;) {
    const auto [error, bytes] = co_await socket_.async_read_some(asio::buffer(sink), kAwait);
    if (error) break;
    taken += bytes;
  }
}

}  // namespace smartgen::gateway
