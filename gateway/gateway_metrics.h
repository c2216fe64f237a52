// The gateway's metrics, looked up once.
#pragma once

#include "common/metrics/metrics.h"

namespace smartgen::v1 {
class RequestStats;
}

namespace smartgen::gateway {

// Thread-safe.
class GatewayMetrics {
 public:
  explicit GatewayMetrics(metrics::Metrics* metrics);

  // Status codes that are counted under their own number; others count as "other".
  void CountAnswer(int status);
  void CountFallback(std::string_view reason);
  void ObserveTokenize(double seconds);
  void ObserveStages(const v1::RequestStats& stats);
  metrics::Metrics* all() { return metrics_; }

  metrics::Histogram& ttft;
  metrics::Histogram& ttst_gap;
  metrics::Histogram& ttst_e2e;
  metrics::Histogram& tbt;
  metrics::Histogram& e2e;
  metrics::Gauge& running;
  metrics::Gauge& waiting;
  metrics::Counter& generated_tokens;

 private:
  metrics::Metrics* const metrics_;
};

}  // namespace smartgen::gateway
