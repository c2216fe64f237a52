// What a TCP channel does on loopback: throughput of large messages (to compare with
// `iperf3 -P 8`, see tests/bench/channel_vs_iperf3.sh), rate of small ones, and how long a small
// on-demand message takes while background data fills the link.
//
//   channel_bench [seconds for each part, default 3]
//
// Prints one JSON object.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/channel/tcp/tcp_engine.h"

namespace smartgen::channel {
namespace {

using base::Clock;

// Places every payload of a lane into the same memory.
class Target : public Receiver {
 public:
  explicit Target(size_t bytes) : memory_(kNumLanes, std::vector<std::byte>(bytes)) {}
  absl::StatusOr<Placement> OnHead(Lane lane, std::span<const std::byte>,
                                   uint64_t payload_bytes) override {
    auto& memory = memory_[static_cast<size_t>(lane)];
    return Placement{.segments = {std::span(memory).first(payload_bytes)}};
  }
  void OnPayload(Lane lane, std::span<const std::byte>, Placement placement) override {
    base::MutexLock lock(mutex_);
    for (const auto& segment : placement.segments) bytes_ += segment.size();
    if (lane == Lane::kOnDemand) {
      ++urgent_;
      changed_.NotifyAll();
    }
  }
  void OnClosed(const absl::Status&) override {}

  uint64_t bytes() const {
    base::MutexLock lock(mutex_);
    return bytes_;
  }
  // False if it has not come within ten seconds.
  bool WaitForUrgent(int64_t count) {
    const auto deadline = base::Deadline::After(*Clock::Real(), std::chrono::seconds(10));
    base::MutexLock lock(mutex_);
    while (urgent_ < count) {
      if (deadline.Expired(*Clock::Real())) return false;
      changed_.WaitFor(mutex_, std::chrono::milliseconds(100));
    }
    return true;
  }

 private:
  std::vector<std::vector<std::byte>> memory_;
  mutable base::Mutex mutex_;
  base::CondVar changed_;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t urgent_ ABSL_GUARDED_BY(mutex_) = 0;
};

struct Link {
  std::unique_ptr<TcpEngine> listener;
  std::unique_ptr<TcpEngine> dialler;
  std::shared_ptr<Target> target;
  std::shared_ptr<Channel> out;
};

Link MakeLink(size_t message_bytes) {
  Link link;
  link.listener = TcpEngine::Create({.listen = "127.0.0.1:0"}, Clock::Real()).value();
  link.dialler = TcpEngine::Create({}, Clock::Real()).value();
  link.target = std::make_shared<Target>(message_bytes);
  const base::ChannelKey key = base::NewChannelKey();
  std::promise<void> paired;
  link.listener->Expect(key, link.target, std::chrono::seconds(5), [&](const auto& result) {
    if (!result.ok()) std::abort();
    paired.set_value();
  });
  link.out =
      link.dialler
          ->Connect("127.0.0.1", link.listener->listen_port(), key, std::make_shared<Target>(0),
                    base::Deadline::After(*Clock::Real(), std::chrono::seconds(5)))
          .value();
  paired.get_future().wait();
  return link;
}

// Keeps `depth` messages in flight until told to stop.
class Stream {
 public:
  Stream(Channel* channel, Lane lane, const std::vector<std::byte>* payload, int depth)
      : channel_(channel), lane_(lane), payload_(payload) {
    for (int i = 0; i < depth; ++i) SendOne();
  }
  // Returns when nothing is in flight any more.
  void Stop() {
    base::MutexLock lock(mutex_);
    stop_ = true;
    while (in_flight_ > 0) changed_.WaitFor(mutex_, std::chrono::milliseconds(100));
  }
  int64_t sent() const {
    base::MutexLock lock(mutex_);
    return sent_;
  }

 private:
  void SendOne() {
    {
      base::MutexLock lock(mutex_);
      if (stop_) return;
      ++in_flight_;
    }
    const absl::Status status = channel_->Send({.lane = lane_,
                                                .head = std::vector<std::byte>(80),
                                                .segments = {*payload_},
                                                .on_done = [this](const absl::Status& done) {
                                                  if (!done.ok()) std::abort();
                                                  SendOne();
                                                  base::MutexLock lock(mutex_);
                                                  ++sent_;
                                                  if (--in_flight_ == 0) changed_.NotifyAll();
                                                }});
    if (!status.ok()) std::abort();
  }

  Channel* const channel_;
  const Lane lane_;
  const std::vector<std::byte>* const payload_;
  mutable base::Mutex mutex_;
  base::CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t sent_ ABSL_GUARDED_BY(mutex_) = 0;
};

void SleepFor(double seconds) {
  const base::TimePoint end = Clock::Real()->Now() + base::FromSeconds(seconds);
  base::Mutex mutex;
  base::CondVar never;
  base::MutexLock lock(mutex);
  while (Clock::Real()->Now() < end) never.WaitFor(mutex, end - Clock::Real()->Now());
}

// Gbit/s of messages of this size, over one lane.
double Throughput(size_t message_bytes, int depth, double seconds, double* messages_per_second) {
  Link link = MakeLink(message_bytes);
  const std::vector<std::byte> payload(message_bytes, std::byte{1});
  Stream stream(link.out.get(), Lane::kProactive, &payload, depth);
  SleepFor(0.5);  // TCP's windows grow
  const uint64_t bytes = link.target->bytes();
  const int64_t messages = stream.sent();
  const base::TimePoint start = Clock::Real()->Now();
  SleepFor(seconds);
  const double took = base::ToSeconds(Clock::Real()->Now() - start);
  const double gbit = static_cast<double>(link.target->bytes() - bytes) * 8e-9 / took;
  *messages_per_second = static_cast<double>(stream.sent() - messages) / took;
  stream.Stop();
  return gbit;
}

// Microseconds from Send to OnPayload of a 4 KiB on-demand message, sorted.
std::vector<double> UrgentLatencies(bool background, double seconds) {
  constexpr size_t kBulk = 1 << 20;
  Link link = MakeLink(kBulk);
  const std::vector<std::byte> bulk(kBulk, std::byte{1});
  const std::vector<std::byte> small(4096, std::byte{2});
  std::unique_ptr<Stream> stream;
  if (background) {
    stream = std::make_unique<Stream>(link.out.get(), Lane::kSpeculative, &bulk, 64);
  }
  SleepFor(0.3);
  std::vector<double> latencies;
  const base::TimePoint end = Clock::Real()->Now() + base::FromSeconds(seconds);
  while (Clock::Real()->Now() < end) {
    const base::TimePoint start = Clock::Real()->Now();
    const absl::Status status = link.out->Send(
        {.lane = Lane::kOnDemand, .head = std::vector<std::byte>(80), .segments = {small}});
    if (!status.ok() || !link.target->WaitForUrgent(static_cast<int64_t>(latencies.size()) + 1)) {
      std::abort();
    }
    latencies.push_back(base::ToSeconds(Clock::Real()->Now() - start) * 1e6);
    SleepFor(0.001);
  }
  if (stream) stream->Stop();
  std::sort(latencies.begin(), latencies.end());
  return latencies;
}

int Main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 3;
  if (!(seconds > 0)) {
    std::fprintf(stderr, "usage: channel_bench [SECONDS]\n");
    return 2;
  }
  double rate_large = 0;
  double rate_medium = 0;
  double rate_small = 0;
  const double large = Throughput(64 << 20, 4, seconds, &rate_large);
  const double medium = Throughput(1 << 20, 64, seconds, &rate_medium);
  const double small = Throughput(4 << 10, 1024, seconds, &rate_small);
  const std::vector<double> idle = UrgentLatencies(false, seconds);
  const std::vector<double> busy = UrgentLatencies(true, seconds);
  const auto at = [](const std::vector<double>& sorted, double q) {
    return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1))];
  };
  std::printf(
      "{\"gbit_per_s_64MiB\": %.2f, \"gbit_per_s_1MiB\": %.2f, \"gbit_per_s_4KiB\": %.2f, "
      "\"messages_per_s_4KiB\": %.0f, \"ondemand_us_idle_p50\": %.0f, "
      "\"ondemand_us_idle_p99\": %.0f, \"ondemand_us_busy_p50\": %.0f, "
      "\"ondemand_us_busy_p99\": %.0f}\n",
      large, medium, small, rate_small, at(idle, 0.5), at(idle, 0.99), at(busy, 0.5),
      at(busy, 0.99));
  return 0;
}

}  // namespace
}  // namespace smartgen::channel

int main(int argc, char** argv) { return smartgen::channel::Main(argc, argv); }
