#include "gateway/http/server.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <thread>
#include <unordered_map>
#include <vector>

#include "common/base/log.h"
#include "common/base/mutex.h"
#include "gateway/http/connection.h"

namespace smartgen::gateway {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
// Out of file descriptors: accept again when some connection may have ended.
constexpr auto kAcceptRetry = std::chrono::milliseconds(100);
// Connections beyond the limit that may be told so at a time; the rest is closed without a word.
constexpr int64_t kRefusalSlack = 64;

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(Options options, Handlers handlers, const base::Clock* clock)
      : context_(std::make_shared<ConnectionContext>()),
        work_(asio::make_work_guard(io_)),
        acceptor_(asio::make_strand(io_)) {
    context_->options = std::move(options);
    context_->handlers = std::move(handlers);
    context_->clock = clock;
  }
  ~HttpServerImpl() override { Stop(); }

  absl::Status Listen() {
    ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(context_->options.listen));
    error_code error;
    tcp::resolver resolver(io_);
    const auto found =
        resolver.resolve(address.host, std::to_string(address.port), tcp::resolver::passive, error);
    if (error || found.empty()) {
      return base::InvalidArgument("listen address {}: {}", context_->options.listen,
                                   error.message());
    }
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      return base::Unavailable("cannot listen on {}: {}", context_->options.listen,
                               error.message());
    }
    port_ = acceptor_.local_endpoint().port();
    asio::co_spawn(acceptor_.get_executor(), Accept(), asio::detached);
    for (int i = 0; i < std::max(1, context_->options.io_threads); ++i) {
      threads_.emplace_back([this] { io_.run(); });
    }
    return absl::OkStatus();
  }

  int port() const override { return port_; }
  asio::any_io_executor executor() override { return io_.get_executor(); }
  int64_t connections() const override { return context_->connections; }
  int64_t busy() const override { return context_->busy; }

  void Drain() override {
    context_->draining = true;
    ForEach([](Connection& c) { c.CloseIfIdle(); });
  }
  void Interrupt() override {
    ForEach([](Connection& c) { c.Interrupt(); });
  }
  void Stop() override {
    if (threads_.empty()) return;
    context_->draining = true;
    {
      // From here on a connection is either seen by ForEach or sees this.
      base::MutexLock lock(mutex_);
      stopping_ = true;
    }
    asio::post(acceptor_.get_executor(), [this] {
      error_code ignored;
      acceptor_.close(ignored);
    });
    ForEach([](Connection& c) {
      c.Interrupt();
      c.Close();
    });
    work_.reset();
    // Coroutines end by themselves once their sockets are closed; the time bounds those that would
    // not.
    const base::Deadline deadline =
        base::Deadline::After(*base::Clock::Real(), std::chrono::seconds(2));
    while (context_->connections > 0 && !deadline.Expired(*base::Clock::Real())) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    io_.stop();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  asio::awaitable<void> Accept() {
    asio::steady_timer pause(acceptor_.get_executor());
    for (;;) {
      auto [error, socket] = co_await acceptor_.async_accept(asio::make_strand(io_), kAwait);
      if (!acceptor_.is_open()) co_return;
      if (error) {
        SMARTGEN_LOG(warn, "http", "accept failed: {}", error.message());
        pause.expires_after(kAcceptRetry);
        co_await pause.async_wait(kAwait);
        continue;
      }
      socket.set_option(tcp::no_delay(true), error);
      const int64_t open = context_->connections;
      if (open >= context_->options.max_connections + kRefusalSlack) continue;
      auto connection = std::make_shared<Connection>(std::move(socket), context_);
      const auto strand = connection->executor();
      if (open >= context_->options.max_connections) {
        asio::co_spawn(strand, Refuse(std::move(connection)), asio::detached);
      } else {
        asio::co_spawn(strand, Serve(std::move(connection)), asio::detached);
      }
    }
  }

  asio::awaitable<void> Serve(std::shared_ptr<Connection> connection) {
    const Connection* key = connection.get();
    {
      base::MutexLock lock(mutex_);
      if (stopping_) co_return;
      live_.emplace(key, connection);
    }
    co_await connection->Run();
    base::MutexLock lock(mutex_);
    live_.erase(key);
  }

  static asio::awaitable<void> Refuse(std::shared_ptr<Connection> connection) {
    ApiError error;
    error.status = 503;
    error.message = "The server has no room for another connection";
    error.type = "server_error";
    error.code = "too_many_connections";
    error.retry_after_seconds = 1;
    HttpResponse response = ErrorResponse(error);
    response.close = true;
    co_await connection->Respond(std::move(response));
    connection->Close();
  }

  template <typename F>
  void ForEach(F f) {
    std::vector<std::shared_ptr<Connection>> connections;
    {
      base::MutexLock lock(mutex_);
      for (const auto& [key, weak] : live_) {
        if (auto connection = weak.lock()) connections.push_back(std::move(connection));
      }
    }
    for (const auto& connection : connections) f(*connection);
  }

  std::shared_ptr<ConnectionContext> context_;
  base::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::unordered_map<const Connection*, std::weak_ptr<Connection>> live_ ABSL_GUARDED_BY(mutex_);
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  tcp::acceptor acceptor_;
  int port_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Options options, Handlers handlers,
                                                              const base::Clock* clock) {
  auto server = std::make_unique<HttpServerImpl>(std::move(options), std::move(handlers), clock);
  RETURN_IF_ERROR(server->Listen());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace smartgen::gateway
