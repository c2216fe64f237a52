// The metric catalogue: one place that names every metric, its type, help, labels and buckets. A
// daemon creates one Metrics and hands it down.
//
// Thread-safe. Counters and gauges are lock-free after the first use of a label set; keep the
// returned reference where it is hot. Label values come from closed sets (paths, reasons, codes,
// peers from the configuration), never from requests.
#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace smartgen::metrics {

enum class Type { kCounter, kGauge, kHistogram };
enum class Buckets { kNone, kTtft, kItl, kSeconds, kCount, kRatio };

struct Definition {
  std::string_view name;  // without the prefix smartgen_
  Type type;
  std::string_view help;
  std::vector<std::string_view> labels;
  Buckets buckets = Buckets::kNone;
};

// The catalogue. common/metrics/catalogue.cc holds the definitions; the README's table is checked
// against it.
std::span<const Definition> Catalogue();
std::string_view TypeName(Type type);  // "counter", "gauge", "histogram"
// The catalogue as the README shows it.
std::string CatalogueMarkdown();
// Bounds of a bucket set, ascending. kTtft and kItl are vLLM's.
std::span<const double> BucketBounds(Buckets buckets);

class Counter {
 public:
  virtual ~Counter() = default;
  virtual void Add(double amount = 1) = 0;
  virtual double value() const = 0;
};
class Gauge {
 public:
  virtual ~Gauge() = default;
  virtual void Set(double value) = 0;
  virtual void Add(double amount) = 0;
  virtual double value() const = 0;
};
class Histogram {
 public:
  virtual ~Histogram() = default;
  virtual void Observe(double value) = 0;
};

using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

class Metrics {
 public:
  // `daemon` becomes build_info's label. Every metric without labels exists from the start at zero.
  static std::unique_ptr<Metrics> Create(std::string_view daemon);
  virtual ~Metrics() = default;

  // `name` without prefix, as in the catalogue; a name, type or label that is not there is a
  // programming error and aborts with a message.
  virtual Counter& GetCounter(std::string_view name, Labels labels = {}) = 0;
  virtual Gauge& GetGauge(std::string_view name, Labels labels = {}) = 0;
  virtual Histogram& GetHistogram(std::string_view name, Labels labels = {}) = 0;
  // Called before each serialisation, to set gauges that are read from elsewhere (pool pages, queue
  // lengths). Calls of one Metrics take turns. A callback lives as long as the Metrics: what it
  // refers to must outlive every Serialize.
  virtual void OnCollect(std::function<void()> callback) = 0;
  // Prometheus text format 0.0.4.
  virtual std::string Serialize() = 0;
};

// Serves GET /metrics over HTTP for daemons that have no HTTP server of their own. `metrics` must
// outlive it.
class MetricsServer {
 public:
  // Unavailable if the address is taken. "127.0.0.1:0" chooses a port.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& address,
                                                              Metrics* metrics);
  virtual ~MetricsServer() = default;
  virtual int port() const = 0;
};

}  // namespace smartgen::metrics
