// Two NCCL engines in one process, over loopback and strict doubles.
#pragma once

#include <gmock/gmock.h>

#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>

#include "common/base/log.h"
#include "common/channel/nccl/nccl_engine.h"
#include "tests/common/channel/tcp_fixture.h"
#include "tests/fakes/fake_nccl.h"

namespace smartgen::channel {

// What a process has: a device, NCCL, and both engines. `tcp` listens or dials.
struct NcclSide {
  NcclSide(fakes::FakeNcclNetwork* network, fakes::FakeDevice::Options device_options,
           NcclEngine::Options options, bool listens)
      : device(device_options), nccl(network, &device) {
    TcpEngine::Options tcp_options;
    if (listens) tcp_options.listen = "127.0.0.1:0";
    tcp = *TcpEngine::Create(tcp_options, base::Clock::Real());
    auto made = NcclEngine::Create(std::move(options), &nccl, tcp.get(), base::Clock::Real());
    EXPECT_TRUE(made.ok()) << made.status();
    engine = *std::move(made);
  }
  // All slots are back, and no communicator is left.
  bool Rests() const {
    const NcclStats stats = engine->stats();
    return stats.channels == 0 && stats.aborting == 0 &&
           stats.free_slots == engine->options().slots && device.used() == stats.staging_bytes;
  }

  fakes::FakeDevice device;
  fakes::FakeNccl nccl;
  std::unique_ptr<TcpEngine> tcp;
  std::unique_ptr<NcclEngine> engine;
};

// A channel between two sides, with what came out of it.
struct NcclPairing {
  std::shared_ptr<RecordingReceiver> here = std::make_shared<RecordingReceiver>();  // the sender's
  std::shared_ptr<RecordingReceiver> there =
      std::make_shared<RecordingReceiver>();  // the receiver's
  std::shared_ptr<Channel> out;
  std::shared_ptr<Channel> back;
};

class NcclFixture : public testing::Test {
 protected:
  using Result = absl::StatusOr<std::shared_ptr<Channel>>;

  NcclFixture() {
    // Before there are threads, as daemons do: its library, which the thread sanitizer does not see
    // into, makes it at the first use.
    (void)spdlog::default_logger();
    options_.piece_bytes = 1000;
    options_.piece_timeout = std::chrono::seconds(1);
    options_.abort_timeout = std::chrono::seconds(20);
  }
  std::unique_ptr<NcclSide> MakeSide(bool listens) {
    return std::make_unique<NcclSide>(network_.get(), device_options_, options_, listens);
  }
  void Start() {
    prefill_.reset();
    decode_.reset();
    network_ = std::make_unique<fakes::FakeNcclNetwork>(network_options_);
    prefill_ = MakeSide(true);
    decode_ = MakeSide(false);
  }
  // The process ends and another begins.
  void Restart(std::unique_ptr<NcclSide>& side) {
    side.reset();
    side = MakeSide(&side == &prefill_);
  }
  std::future<Result> Expect(NcclSide& side, const base::ChannelKey& key, const NcclTicket& ticket,
                             const std::shared_ptr<Receiver>& receiver, base::Duration timeout) {
    auto promise = std::make_shared<std::promise<Result>>();
    side.engine->Expect(key, ticket, receiver, timeout,
                        [promise](Result result) { promise->set_value(std::move(result)); });
    return promise->get_future();
  }
  // Both ends' results; the sender's first.
  std::pair<Result, Result> TryPair(NcclSide& from, NcclSide& to, NcclPairing& pairing,
                                    base::Duration timeout = std::chrono::seconds(20)) {
    const base::ChannelKey key = base::NewChannelKey();
    const auto ticket = from.engine->MakeTicket();
    if (!ticket.ok()) return {ticket.status(), ticket.status()};
    auto expected = Expect(from, key, *ticket, pairing.here, timeout);
    Result back = to.engine->Connect("127.0.0.1", from.tcp->listen_port(), key, *ticket,
                                     pairing.there, In(timeout));
    return {expected.get(), std::move(back)};
  }
  NcclPairing Pair(NcclSide& from, NcclSide& to) {
    NcclPairing pairing;
    auto [out, back] = TryPair(from, to, pairing);
    // Nothing that follows makes sense without; a test that ended here would hang in its waits.
    if (!out.ok() || !back.ok()) {
      throw std::runtime_error(fmt::format("pairing failed: {}; {}", base::MessageOf(out.status()),
                                           base::MessageOf(back.status())));
    }
    pairing.out = *std::move(out);
    pairing.back = *std::move(back);
    return pairing;
  }
  NcclPairing Pair() { return Pair(*prefill_, *decode_); }

  OutMessage Message(Lane lane, std::string_view head, std::vector<std::byte> payload,
                     size_t piece = 0) {
    return MakeMessage(lane, head, std::move(payload), piece, done_.Callback());
  }
  static bool WaitUntil(const std::function<bool()>& condition,
                        base::Duration timeout = std::chrono::seconds(20)) {
    const auto deadline = In(timeout);
    while (!condition()) {
      if (deadline.Expired(*base::Clock::Real())) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  // A payload goes over and comes out right.
  void ExpectWorks(NcclPairing& pairing, std::string_view head = "works") {
    const size_t before = pairing.there->messages().size();
    ASSERT_TRUE(pairing.out->Send(Message(Lane::kProactive, head, Pattern(3500, 3))).ok());
    ASSERT_TRUE(pairing.there->WaitForMessages(before + 1));
    EXPECT_EQ(pairing.there->messages().back().payload, Pattern(3500, 3));
  }
  // Within 5 s (the case rows' figure).
  static void ExpectCloses(const std::shared_ptr<RecordingReceiver>& receiver,
                           const std::string& why) {
    const auto begun = base::Clock::Real()->Now();
    const auto reason = receiver->WaitForClose();
    ASSERT_TRUE(reason.has_value());
    EXPECT_LT(base::ToSeconds(base::Clock::Real()->Now() - begun), 5);
    EXPECT_THAT(std::string(base::MessageOf(*reason)), testing::HasSubstr(why));
  }

  NcclEngine::Options options_;
  fakes::FakeDevice::Options device_options_;
  fakes::FakeNcclNetwork::Options network_options_;
  DoneCounter done_;  // outlives the engines, which call it last
  std::unique_ptr<fakes::FakeNcclNetwork> network_;
  std::unique_ptr<NcclSide> prefill_;
  std::unique_ptr<NcclSide> decode_;
};

}  // namespace smartgen::channel
