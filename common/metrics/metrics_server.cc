// GET /metrics through civetweb's C interface. Not prometheus::Exposer: it adds metrics of its own,
// which no catalogue names.
#include <civetweb.h>

#include <cstring>
#include <string>

#include "common/metrics/metrics.h"

namespace smartgen::metrics {
namespace {

int Reply(mg_connection* connection, std::string_view status, std::string_view type,
          std::string_view body) {
  mg_printf(
      connection,
      "HTTP/1.1 %.*s\r\nContent-Type: %.*s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
      static_cast<int>(status.size()), status.data(), static_cast<int>(type.size()), type.data(),
      body.size());
  mg_write(connection, body.data(), body.size());
  return 1;
}

int Handle(mg_connection* connection, void* metrics) {
  const mg_request_info* request = mg_get_request_info(connection);
  if (std::strcmp(request->request_method, "GET") != 0) {
    return Reply(connection, "405 Method Not Allowed", "text/plain", "only GET is served here\n");
  }
  if (std::strcmp(request->local_uri, "/metrics") != 0) {
    return Reply(connection, "404 Not Found", "text/plain", "metrics are at /metrics\n");
  }
  return Reply(connection, "200 OK", "text/plain; version=0.0.4; charset=utf-8",
               static_cast<Metrics*>(metrics)->Serialize());
}

class ServerImpl final : public MetricsServer {
 public:
  explicit ServerImpl(mg_context* context) : context_(context) {
    mg_server_port port{};
    if (mg_get_server_ports(context_, 1, &port) == 1) port_ = port.port;
  }
  ~ServerImpl() override {
    mg_stop(context_);
    mg_exit_library();
  }
  int port() const override { return port_; }

 private:
  mg_context* context_;
  int port_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& address,
                                                                    Metrics* metrics) {
  // A scraper or two; requests that stall are cut off.
  const char* options[] = {
      "listening_ports", address.c_str(),     "num_threads", "2",    "request_timeout_ms",
      "10000",           "enable_keep_alive", "no",          nullptr};
  mg_init_library(0);
  mg_callbacks callbacks{};
  callbacks.log_message = [](const mg_connection*, const char*) { return 1; };  // we report
  mg_context* context = mg_start(&callbacks, nullptr, options);
  if (context == nullptr) {
    mg_exit_library();
    return base::Unavailable(
        "cannot serve metrics at {}: the address is taken, not this machine's, or not host:port",
        address);
  }
  mg_set_request_handler(context, "/**", Handle, metrics);
  return std::make_unique<ServerImpl>(context);
}

}  // namespace smartgen::metrics
