// The HTTP/1.1 server. Slow, large, broken and vanishing clients are its business, what is served
// is not.
//
// Thread-safe.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "gateway/http/exchange.h"

namespace smartgen::gateway {

class HttpServer {
 public:
  struct Options {
    std::string listen = "127.0.0.1:8000";
    int io_threads = 1;
    int64_t max_connections = 1024;
    int64_t max_body_bytes = 8 << 20;
    int64_t max_header_bytes = 16 << 10;
    // Bodies being received or handled, of all connections together.
    int64_t max_body_bytes_in_flight = 256 << 20;
    // From a request's first byte to the end of its header.
    base::Duration header_timeout = std::chrono::seconds(10);
    base::Duration body_timeout = std::chrono::seconds(60);
    // A client that does not take what is written to it for this long is gone.
    base::Duration write_timeout = std::chrono::seconds(30);
    // A connection that is kept open without a request.
    base::Duration idle_timeout = std::chrono::seconds(75);
    std::string cors_allow_origin;  // empty: no CORS headers
  };
  struct Handlers {
    // After the header, before the body: an answer ends the matter (401, 404, 405, 503).
    std::function<std::optional<HttpResponse>(const HttpRequest&)> check_head;
    // The whole request. Runs on the connection's executor and must not block.
    std::function<boost::asio::awaitable<void>(const HttpRequest&, Exchange&)> handle;
    // After each answer's head: its status. May be empty.
    std::function<void(const HttpRequest&, int status)> on_answer;
  };

  // Unavailable if the address is taken.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options, Handlers handlers,
                                                           const base::Clock* clock);
  virtual ~HttpServer() = default;  // stops
  virtual int port() const = 0;
  virtual boost::asio::any_io_executor executor() = 0;
  virtual int64_t connections() const = 0;
  // Requests from the end of their header to the end of their answer.
  virtual int64_t busy() const = 0;
  // From here on every answer ends its connection; idle ones are closed. New ones are still
  // accepted, so that who comes hears 503 and not a refusal.
  virtual void Drain() = 0;
  // Tells every running exchange kShutdown.
  virtual void Interrupt() = 0;
  // Closes everything and joins the threads.
  virtual void Stop() = 0;
};

}  // namespace smartgen::gateway
