#include "gateway/router/router.h"

#include <algorithm>
#include <thread>

#include "common/base/log.h"
#include "gateway/router/generate_call.h"
#include "gateway/router/instance.h"

namespace smartgen::gateway {
namespace {

constexpr auto kPollTick = std::chrono::milliseconds(100);
constexpr auto kStopPatience = std::chrono::seconds(10);
constexpr auto kReleasePatience = std::chrono::seconds(5);

class RouterImpl final : public Router {
 public:
  RouterImpl(Options options, const base::Clock* clock)
      : options_(std::move(options)), clock_(clock) {}
  ~RouterImpl() override {
    Stop();
    // The callback of the last poll may hold its instance a little longer than it counts.
    decode_.clear();
    prefill_.clear();
    rpc::ReleaseChannels(std::move(channels_), kReleasePatience);
  }

  absl::Status Init(metrics::Metrics* metrics) {
    if (options_.decode.empty()) {
      return base::InvalidArgument("decode: at least one decode instance (host:port) is needed");
    }
    RETURN_IF_ERROR(Add(options_.decode, false, metrics, decode_));
    RETURN_IF_ERROR(Add(options_.prefill, true, metrics, prefill_));
    poller_ = std::thread([this] { PollLoop(); });
    const base::Deadline deadline = base::Deadline::After(*clock_, options_.poll_timeout);
    base::MutexLock lock(mutex_);
    while (!AllKnown() && !deadline.Expired(*clock_)) {
      wake_.WaitFor(mutex_, std::chrono::milliseconds(5));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<BackendCall>> Generate(v1::GenerateRequest request,
                                                        const std::set<std::string>& exclude,
                                                        base::Deadline deadline,
                                                        BackendCall::Events events) override {
    const std::shared_ptr<Instance> decode = Choose(exclude);
    if (!decode) return NoneLeft(exclude);
    const std::vector<std::shared_ptr<Instance>> ranked = RankPrefill();
    request.set_model_fingerprint(options_.model_fingerprint);
    request.clear_prefill_ranking();
    for (const auto& instance : ranked) request.add_prefill_ranking(instance->address());
    auto call = std::make_shared<GenerateCall>(decode, ranked.empty() ? nullptr : ranked.front(),
                                               std::move(request), std::move(events),
                                               options_.read_ahead, &calls_);
    call->Start(deadline, *clock_);
    return std::shared_ptr<BackendCall>(std::move(call));
  }

  int64_t context_length() const override {
    int64_t smallest = 0;
    for (const auto& instance : decode_) {
      const int64_t length = instance->context_length();
      if (length > 0 && (smallest == 0 || length < smallest)) smallest = length;
    }
    return smallest;
  }

  bool AnyDecodeUp() const override {
    return std::any_of(decode_.begin(), decode_.end(), [](const auto& i) { return i->up(); });
  }

  std::vector<InstanceState> Snapshot() const override {
    std::vector<InstanceState> states;
    for (const auto* group : {&decode_, &prefill_}) {
      for (const auto& instance : *group) states.push_back(instance->State());
    }
    return states;
  }

  void Stop() override {
    {
      base::MutexLock lock(mutex_);
      if (stopping_) return;
      stopping_ = true;
      wake_.NotifyAll();
    }
    if (poller_.joinable()) poller_.join();
    for (const auto* group : {&decode_, &prefill_}) {
      for (const auto& instance : *group) {
        instance->CancelPoll();
        for (const auto& call : instance->LiveCalls()) call->Cancel();
      }
    }
    if (!calls_.WaitForNone(kStopPatience)) {
      SMARTGEN_LOG(error, "router", "some calls did not end within {} s of being cancelled",
                   std::chrono::seconds(kStopPatience).count());
    }
  }

 private:
  using Instances = std::vector<std::shared_ptr<Instance>>;

  absl::Status Add(const std::vector<std::string>& addresses, bool prefill,
                   metrics::Metrics* metrics, Instances& out) {
    for (const std::string& address : addresses) {
      ASSIGN_OR_RETURN(auto channel, rpc::Connect(address, options_.client));
      channels_.push_back(channel);
      out.push_back(std::make_shared<Instance>(address, prefill, std::move(channel), &options_,
                                               &metrics->GetGauge("peer_up", {{"peer", address}}),
                                               &calls_));
    }
    return absl::OkStatus();
  }

  bool AllKnown() const {
    const auto known = [](const auto& instance) { return instance->Known(); };
    return std::all_of(decode_.begin(), decode_.end(), known) &&
           std::all_of(prefill_.begin(), prefill_.end(), known);
  }

  void PollLoop() {
    base::MutexLock lock(mutex_);
    while (!stopping_) {
      for (const auto* group : {&decode_, &prefill_}) {
        for (const auto& instance : *group) {
          if (instance->PollDue(clock_->Now())) instance->Poll(*clock_);
        }
      }
      wake_.WaitFor(mutex_, kPollTick);
    }
  }

  std::shared_ptr<Instance> Choose(const std::set<std::string>& exclude) const {
    std::shared_ptr<Instance> best;
    for (const auto& instance : decode_) {
      if (exclude.contains(instance->address()) || !instance->up()) continue;
      if (!best || instance->Load() < best->Load()) best = instance;
    }
    return best;
  }

  absl::Status NoneLeft(const std::set<std::string>& exclude) const {
    std::string why;
    for (const auto& instance : decode_) {
      const InstanceState state = instance->State();
      const bool tried = exclude.contains(state.address);
      why += fmt::format("{}{}: {}", why.empty() ? "" : "; ", state.address,
                         tried ? "failed already" : state.detail);
    }
    return base::Unavailable("No decode instance is available ({})", why);
  }

  // Those that are up, least loaded first. If none is, all: the decode instance has its own view of
  // them.
  Instances RankPrefill() const {
    std::vector<std::pair<int64_t, std::shared_ptr<Instance>>> up;
    for (const auto& instance : prefill_) {
      if (instance->up()) up.emplace_back(instance->Load(), instance);
    }
    std::stable_sort(up.begin(), up.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    Instances ranked;
    for (auto& [load, instance] : up) ranked.push_back(std::move(instance));
    return ranked.empty() ? prefill_ : ranked;
  }

  const Options options_;
  const base::Clock* const clock_;
  CallCount calls_;
  Instances decode_;
  Instances prefill_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;  // see rpc::ReleaseChannels
  base::Mutex mutex_;
  base::CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread poller_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Router>> Router::Start(Options options, metrics::Metrics* metrics,
                                                      const base::Clock* clock) {
  auto router = std::make_unique<RouterImpl>(std::move(options), clock);
  RETURN_IF_ERROR(router->Init(metrics));
  return std::unique_ptr<Router>(std::move(router));
}

}  // namespace smartgen::gateway
