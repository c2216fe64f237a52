#include "gateway/gateway_metrics.h"

#include <algorithm>
#include <array>
#include <string>

#include "proto/decode.pb.h"

namespace smartgen::gateway {
namespace {

// 499: the client left before the answer (nginx's number for it).
constexpr std::array<int, 15> kCodes = {200, 400, 401, 404, 405, 408, 413, 415,
                                        429, 431, 499, 500, 502, 503, 504};

}  // namespace

GatewayMetrics::GatewayMetrics(metrics::Metrics* metrics)
    : ttft(metrics->GetHistogram("ttft_seconds")),
      ttst_gap(metrics->GetHistogram("ttst_seconds", {{"def", "gap"}})),
      ttst_e2e(metrics->GetHistogram("ttst_seconds", {{"def", "e2e"}})),
      tbt(metrics->GetHistogram("tbt_seconds")),
      e2e(metrics->GetHistogram("e2e_seconds")),
      running(metrics->GetGauge("requests_running")),
      waiting(metrics->GetGauge("requests_waiting")),
      generated_tokens(metrics->GetCounter("generation_tokens_total")),
      metrics_(metrics) {}

void GatewayMetrics::CountAnswer(int status) {
  const bool known = std::find(kCodes.begin(), kCodes.end(), status) != kCodes.end();
  const std::string code = known ? std::to_string(status) : "other";
  metrics_->GetCounter("requests_total", {{"code", code}}).Add();
}

void GatewayMetrics::CountFallback(std::string_view reason) {
  metrics_->GetCounter("fallback_total", {{"reason", reason}}).Add();
}

void GatewayMetrics::ObserveTokenize(double seconds) {
  metrics_->GetHistogram("stage_seconds", {{"stage", "tokenize"}}).Observe(seconds);
}

void GatewayMetrics::ObserveStages(const v1::RequestStats& stats) {
  const auto observe = [&](std::string_view stage, double seconds) {
    metrics_->GetHistogram("stage_seconds", {{"stage", stage}}).Observe(seconds);
  };
  observe("queue", stats.queue_seconds());
  observe("prefill", stats.prefill_seconds());
  observe("transfer_exposed", stats.transfer_exposed_seconds());
  observe("decode", stats.decode_seconds());
  const auto count = [&](std::string_view source, int64_t tokens) {
    if (tokens <= 0) return;
    metrics_->GetCounter("prompt_tokens_total", {{"source", source}})
        .Add(static_cast<double>(tokens));
  };
  count("prefix", stats.cached_tokens());
  count(stats.prefill_address().empty() ? "local" : "remote",
        stats.prompt_tokens() - stats.cached_tokens());
}

}  // namespace smartgen::gateway
