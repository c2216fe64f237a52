// How fast KV goes over a link, and how long a small answer takes beside it.
//
//   transfer_bench send PORT SECONDS           the prefill side: listens
//   transfer_bench receive HOST PORT SECONDS   the decode side: dials, prints one JSON object
//
// The sender always has background to send; every 20 ms it gives an answer of 4 KiB to the
// on-demand lane. Both must run on one machine (one clock), each in a network namespace of its own
// if the link between is to be shaped: tests/bench/transfer_link.sh does that.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/channel/tcp/tcp_engine.h"
#include "common/transfer/transfer.h"

namespace smartgen::transfer {
namespace {

using base::Clock;

constexpr int64_t kTokens = 4096;
constexpr base::Duration kAnswerInterval = std::chrono::milliseconds(20);

// SmolLM2-135M: 23,040 bytes a token.
kv::KvLayout Layout() {
  return {.layers = std::vector<kv::LayerLayout>(30, {.kv_heads = 3, .head_dim = 64}),
          .dtype = kv::DType::kBF16,
          .token_capacity = kTokens};
}

base::TransferId IdOf(uint64_t number) { return {.hi = 1, .lo = number}; }

base::Deadline In(base::Duration d) { return base::Deadline::After(*Clock::Real(), d); }

void SleepUntil(base::TimePoint end) {
  base::Mutex mutex;
  base::CondVar never;
  base::MutexLock lock(mutex);
  while (Clock::Real()->Now() < end) never.WaitFor(mutex, end - Clock::Real()->Now());
}

class IgnoreAll : public channel::Receiver {
 public:
  absl::StatusOr<channel::Placement> OnHead(channel::Lane, std::span<const std::byte>,
                                            uint64_t) override {
    return base::Unimplemented("nothing is expected here");
  }
  void OnPayload(channel::Lane, std::span<const std::byte>, channel::Placement) override {}
  void OnClosed(const absl::Status&) override {}
};

std::shared_ptr<kv::KvSequence> NewSequence(kv::KvPool& pool) {
  auto sequence = std::make_shared<kv::KvSequence>(&pool);
  if (!sequence->Reserve(kTokens).ok()) std::abort();
  return sequence;
}

int Send(int port, double seconds) {
  auto pool = kv::KvPool::Create(Layout(), {.bytes = kTokens / 16 * Layout().PageBytesTotal()});
  auto sequence = NewSequence(**pool);
  auto engine =
      channel::TcpEngine::Create({.listen = "0.0.0.0:" + std::to_string(port)}, Clock::Real());
  if (!engine.ok()) {
    std::fprintf(stderr, "%s\n", std::string(engine.status().message()).c_str());
    return 1;
  }
  std::promise<std::shared_ptr<channel::Channel>> paired;
  (*engine)->Expect({}, std::make_shared<IgnoreAll>(), std::chrono::seconds(10),
                    [&](auto result) { paired.set_value(result.ok() ? *result : nullptr); });
  const std::shared_ptr<channel::Channel> channel = paired.get_future().get();
  if (channel == nullptr) return 1;
  TransferSender sender(channel, {.own_incarnation = 1, .peer_incarnation = 2});
  // All at once, so that there is always something: of one, then of the next.
  for (uint64_t n = 1; n <= 64; ++n) {
    (void)sender.Begin(
        {.id = IdOf(n), .sequence = sequence, .begin = 0, .end = kTokens, .full = true});
  }
  uint64_t current = 0;
  const base::TimePoint end = Clock::Real()->Now() + base::FromSeconds(seconds);
  const uint64_t all = kTokens * static_cast<uint64_t>(Layout().TokenBytes());
  while (Clock::Real()->Now() < end) {
    if (current == 0 || sender.stats(IdOf(current)).bytes_by_path[Path::kFull] > all / 2) {
      ++current;
      for (int layer = 0; layer < 30; ++layer) {
        (void)sender.LayerReady(IdOf(current), {.layer = layer, .begin = 0, .end = kTokens});
      }
    }
    const base::TimePoint now = Clock::Real()->Now();
    (void)sender.Reply(IdOf(1), static_cast<uint64_t>(now.ns), 0, std::vector<std::byte>(4096));
    SleepUntil(now + kAnswerInterval);
  }
  std::fprintf(stderr, "{\"estimate_mbit_per_s\": %.2f, \"estimate_rtt_ms\": %.3f}\n",
               sender.link().bytes_per_second * 8e-6, sender.link().rtt_seconds * 1e3);
  channel->Close(absl::OkStatus());
  return 0;
}

int Receive(const std::string& host, int port, double seconds) {
  auto pool =
      kv::KvPool::Create(Layout(), {.bytes = 64 * kTokens / 16 * Layout().PageBytesTotal()});
  auto receiver = TransferReceiver::Create({.own_incarnation = 2, .peer_incarnation = 1}, {});
  base::Mutex mutex;
  std::vector<double> latencies;  // ms
  for (uint64_t n = 1; n <= 64; ++n) {
    ReceiveSpec spec{.id = IdOf(n), .sequence = NewSequence(**pool), .begin = 0, .end = kTokens};
    spec.on_reply = [&](uint64_t step, int, std::vector<std::byte>) {
      base::MutexLock lock(mutex);
      latencies.push_back(static_cast<double>(Clock::Real()->Now().ns) * 1e-6 -
                          static_cast<double>(step) * 1e-6);
    };
    if (!receiver->Begin(std::move(spec)).ok()) std::abort();
  }
  auto engine = channel::TcpEngine::Create({}, Clock::Real());
  const auto channel = (*engine)->Connect(host, port, {}, receiver, In(std::chrono::seconds(10)));
  if (!channel.ok()) {
    std::fprintf(stderr, "%s\n", std::string(channel.status().message()).c_str());
    return 1;
  }
  const auto bytes = [&] {
    uint64_t sum = 0;
    for (const uint64_t lane : (*channel)->stats().bytes_received) sum += lane;
    return sum;
  };
  // The first fifth is for the window to find its size.
  SleepUntil(Clock::Real()->Now() + base::FromSeconds(seconds * 0.2));
  const uint64_t before = bytes();
  const base::TimePoint start = Clock::Real()->Now();
  {
    base::MutexLock lock(mutex);
    latencies.clear();
  }
  SleepUntil(start + base::FromSeconds(seconds * 0.7));
  const double took = base::ToSeconds(Clock::Real()->Now() - start);
  const double mbit = static_cast<double>(bytes() - before) * 8e-6 / took;
  base::MutexLock lock(mutex);
  std::sort(latencies.begin(), latencies.end());
  const auto at = [&](double q) {
    if (latencies.empty()) return -1.0;
    return latencies[static_cast<size_t>(q * static_cast<double>(latencies.size() - 1))];
  };
  std::printf(
      "{\"mbit_per_s\": %.2f, \"answers\": %zu, \"answer_ms_p50\": %.2f, \"answer_ms_p90\": %.2f, "
      "\"answer_ms_p99\": %.2f}\n",
      mbit, latencies.size(), at(0.5), at(0.9), at(0.99));
  return 0;
}

int Main(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "send" && argc == 4) return Send(std::atoi(argv[2]), std::atof(argv[3]));
  if (role == "receive" && argc == 5) {
    return Receive(argv[2], std::atoi(argv[3]), std::atof(argv[4]));
  }
  std::fprintf(stderr, "usage: transfer_bench send PORT SECONDS | receive HOST PORT SECONDS\n");
  return 2;
}

}  // namespace
}  // namespace smartgen::transfer

int main(int argc, char** argv) { return smartgen::transfer::Main(argc, argv); }
