#include "common/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "common/base/mutex.h"

namespace smartgen::metrics {
namespace {

class CounterImpl final : public Counter {
 public:
  explicit CounterImpl(prometheus::Counter& counter) : counter_(counter) {}
  void Add(double amount) override { counter_.Increment(amount); }
  double value() const override { return counter_.Value(); }

 private:
  prometheus::Counter& counter_;
};

class GaugeImpl final : public Gauge {
 public:
  explicit GaugeImpl(prometheus::Gauge& gauge) : gauge_(gauge) {}
  void Set(double value) override { gauge_.Set(value); }
  void Add(double amount) override { gauge_.Increment(amount); }
  double value() const override { return gauge_.Value(); }

 private:
  prometheus::Gauge& gauge_;
};

class HistogramImpl final : public Histogram {
 public:
  explicit HistogramImpl(prometheus::Histogram& histogram) : histogram_(histogram) {}
  void Observe(double value) override { histogram_.Observe(value); }

 private:
  prometheus::Histogram& histogram_;
};

[[noreturn]] void Abort(const std::string& message) {
  std::fprintf(stderr, "metrics: %s\n", message.c_str());
  std::abort();
}

using LabelMap = std::map<std::string, std::string>;

class MetricsImpl final : public Metrics {
 public:
  explicit MetricsImpl(std::string_view daemon) {
    for (const Definition& definition : Catalogue()) AddFamily(definition);
    GetGauge("build_info", {{"daemon", daemon}, {"version", SMARTGEN_VERSION}}).Set(1);
  }

  Counter& GetCounter(std::string_view name, Labels labels) override {
    return Get<Counter>(name, Type::kCounter, labels);
  }
  Gauge& GetGauge(std::string_view name, Labels labels) override {
    return Get<Gauge>(name, Type::kGauge, labels);
  }
  Histogram& GetHistogram(std::string_view name, Labels labels) override {
    return Get<Histogram>(name, Type::kHistogram, labels);
  }

  void OnCollect(std::function<void()> callback) override {
    base::MutexLock lock(collect_mutex_);
    callbacks_.push_back(std::move(callback));
  }

  std::string Serialize() override {
    base::MutexLock lock(collect_mutex_);
    for (const auto& callback : callbacks_) callback();
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }

 private:
  struct Family {
    const Definition* definition;
    prometheus::Family<prometheus::Counter>* counters = nullptr;
    prometheus::Family<prometheus::Gauge>* gauges = nullptr;
    prometheus::Family<prometheus::Histogram>* histograms = nullptr;
    std::map<LabelMap, std::unique_ptr<Counter>> counter_cells;
    std::map<LabelMap, std::unique_ptr<Gauge>> gauge_cells;
    std::map<LabelMap, std::unique_ptr<Histogram>> histogram_cells;
  };

  void AddFamily(const Definition& definition) {
    Family family{.definition = &definition};
    const std::string name = "smartgen_" + std::string(definition.name);
    const std::string help(definition.help);
    switch (definition.type) {
      case Type::kCounter:
        family.counters = &prometheus::BuildCounter().Name(name).Help(help).Register(registry_);
        break;
      case Type::kGauge:
        family.gauges = &prometheus::BuildGauge().Name(name).Help(help).Register(registry_);
        break;
      case Type::kHistogram:
        family.histograms = &prometheus::BuildHistogram().Name(name).Help(help).Register(registry_);
        break;
    }
    {
      base::MutexLock lock(mutex_);
      families_.emplace(definition.name, std::move(family));
    }
    if (definition.labels.empty()) Touch(definition);
  }

  void Touch(const Definition& definition) {
    if (definition.type == Type::kCounter) GetCounter(definition.name, {});
    if (definition.type == Type::kGauge) GetGauge(definition.name, {});
    if (definition.type == Type::kHistogram) GetHistogram(definition.name, {});
  }

  template <typename T>
  T& Get(std::string_view name, Type type, Labels labels) {
    base::MutexLock lock(mutex_);
    const auto it = families_.find(name);
    if (it == families_.end()) Abort(fmt::format("{} is not in the catalogue", name));
    Family& family = it->second;
    if (family.definition->type != type) {
      Abort(fmt::format("{} is a {}, not a {}", name, TypeName(family.definition->type),
                        TypeName(type)));
    }
    const LabelMap map = CheckLabels(*family.definition, labels);
    std::unique_ptr<T>& cell = Cells<T>(family)[map];
    if (cell == nullptr) cell = Make<T>(family, map);
    return *cell;
  }

  static LabelMap CheckLabels(const Definition& definition, Labels labels) {
    LabelMap map;
    for (const auto& [key, value] : labels) map.emplace(key, value);
    bool right = map.size() == labels.size() && map.size() == definition.labels.size();
    for (const std::string_view label : definition.labels) {
      right = right && map.contains(std::string(label));
    }
    if (!right) {
      std::string got;
      for (const auto& [key, value] : labels) got += fmt::format(" {}", key);
      Abort(fmt::format("{} has the labels [{}], got [{}]", definition.name,
                        fmt::join(definition.labels, " "), got.empty() ? "" : got.substr(1)));
    }
    return map;
  }

  template <typename T>
  static auto& Cells(Family& family) {
    if constexpr (std::is_same_v<T, Counter>) return family.counter_cells;
    if constexpr (std::is_same_v<T, Gauge>) return family.gauge_cells;
    if constexpr (std::is_same_v<T, Histogram>) return family.histogram_cells;
  }

  template <typename T>
  static std::unique_ptr<T> Make(Family& family, const LabelMap& map) {
    if constexpr (std::is_same_v<T, Counter>) {
      return std::make_unique<CounterImpl>(family.counters->Add(map));
    } else if constexpr (std::is_same_v<T, Gauge>) {
      return std::make_unique<GaugeImpl>(family.gauges->Add(map));
    } else {
      const std::span<const double> bounds = BucketBounds(family.definition->buckets);
      return std::make_unique<HistogramImpl>(family.histograms->Add(
          map, prometheus::Histogram::BucketBoundaries(bounds.begin(), bounds.end())));
    }
  }

  prometheus::Registry registry_;
  base::Mutex mutex_;
  std::map<std::string_view, Family> families_ ABSL_GUARDED_BY(mutex_);
  base::Mutex collect_mutex_;  // taken before mutex_: callbacks set gauges
  std::vector<std::function<void()>> callbacks_ ABSL_GUARDED_BY(collect_mutex_);
};

}  // namespace

std::unique_ptr<Metrics> Metrics::Create(std::string_view daemon) {
  return std::make_unique<MetricsImpl>(daemon);
}

}  // namespace smartgen::metrics
