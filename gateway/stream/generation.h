// One generation request from its body to its last byte.
//
//   preparing -> starting -> waiting (no token yet) -> streaming -> done
//
// Every state ends early when the client goes (the calls are cancelled at once), the server shuts
// down (the client is told) or the backends have no way left (the client is told: HTTP status while
// nothing was sent, an error event in the stream after that).
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>

#include "gateway/gateway_metrics.h"
#include "gateway/http/exchange.h"
#include "gateway/model.h"
#include "gateway/openai/request.h"
#include "gateway/router/router.h"

namespace smartgen::gateway {

// What all generations of a gateway share. Outlives them.
struct GenerationContext {
  const ServedModel* model = nullptr;
  Router* router = nullptr;
  GatewayMetrics* metrics = nullptr;
  const base::Clock* clock = nullptr;
  boost::asio::thread_pool* workers = nullptr;
  RequestLimits limits;
  int64_t max_running = 256;  // choices of all requests together
  base::Duration request_timeout = std::chrono::hours(1);
  base::Duration keepalive_interval = std::chrono::seconds(15);
  // Decode instances tried for one choice, the first included.
  int max_attempts = 3;
  // A generation that made a token, or failed for no fault of the client's: for readiness.
  std::function<void(const v1::RequestStats&, const std::string& decode_address)> on_success;
  std::function<void(const absl::Status&)> on_failure;

  std::atomic<int64_t> running{0};   // choices admitted
  std::atomic<int64_t> requests{0};  // requests not answered to the end
};

boost::asio::awaitable<void> ServeGeneration(GenerationContext& context, Api api,
                                             const HttpRequest& request, Exchange& exchange);

}  // namespace smartgen::gateway
