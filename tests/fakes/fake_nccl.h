// NCCL without NCCL, between two FakeDevices of one process. Strict about the rules of nccl.h: a
// second thread that issues, a call while something is in progress or after an error, operations
// that do not match, a communicator that is destroyed without an abort fail the test. Nothing is
// buffered: a send stands on its device until the peer's receive runs on its own.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "common/channel/nccl/nccl.h"
#include "tests/fakes/fake_device.h"

namespace smartgen::fakes {

// What connects the communicators of several FakeNccls. Thread-safe.
class FakeNcclNetwork {
 public:
  struct Options {
    // Whether a rank hears of the other's end (as an asynchronous error, a little later), or is
    // left hanging until it aborts.
    bool tells_of_the_end = true;
    // A call is in progress for up to so many looks at the state.
    int most_looks = 3;
    uint64_t seed = 1;
    uint64_t communicator_bytes = 4 << 20;  // of the device
  };
  explicit FakeNcclNetwork(Options options) : options_(options), random_(options.seed) {}
  FakeNcclNetwork() : FakeNcclNetwork(Options()) {}
  ~FakeNcclNetwork() { EXPECT_EQ(communicators(), 0) << "communicators that nobody aborted"; }

  int communicators() const { return communicators_; }
  // Aborts hang from now on, until told otherwise.
  void HangAborts(bool hang) { hang_ = hang; }
  // The next so many bytes received are another's: the last bit is flipped.
  void Damage(int receives) { damage_ = receives; }

 private:
  friend class FakeNccl;
  friend class FakeCommunicator;

  struct Transfer {
    std::span<const std::byte> bytes;
    bool taken = false;
  };
  struct Pair {
    std::mutex mutex;
    bool joined[2] = {false, false};
    bool ended[2] = {false, false};
    std::chrono::steady_clock::time_point ended_at;
    Transfer* sending[2] = {nullptr, nullptr};  // by the sending rank
    bool mismatch = false;
  };
  int Looks() {
    const std::lock_guard lock(mutex_);
    return std::uniform_int_distribution<int>(0, options_.most_looks)(random_);
  }
  std::shared_ptr<Pair> Find(const channel::NcclUniqueId& id) {
    const std::lock_guard lock(mutex_);
    auto& pair = pairs_[id];
    if (pair == nullptr) pair = std::make_shared<Pair>();
    return pair;
  }

  const Options options_;
  std::mutex mutex_;
  std::minstd_rand random_;
  std::map<channel::NcclUniqueId, std::shared_ptr<Pair>> pairs_;
  std::atomic<int> communicators_{0};
  std::atomic<bool> hang_{false};
  std::atomic<int> damage_{0};
};

class FakeCommunicator final : public channel::NcclCommunicator {
 public:
  FakeCommunicator(FakeNcclNetwork* network, FakeDevice* device,
                   std::shared_ptr<FakeNcclNetwork::Pair> pair, int rank,
                   const std::atomic<bool>* dead)
      : network_(network), device_(device), pair_(std::move(pair)), rank_(rank), dead_(dead) {
    ++network_->communicators_;
    thread_ = std::this_thread::get_id();
  }
  ~FakeCommunicator() override {
    EXPECT_TRUE(*aborted_) << "a communicator was destroyed without an abort";
  }

  absl::StatusOr<State> state() override {
    CheckThread();
    if (const auto error = Error()) {
      failed_ = true;
      return *error;
    }
    {
      const std::lock_guard lock(pair_->mutex);
      if (!pair_->joined[1 - rank_]) return State::kInProgress;
    }
    if (looks_ > 0) {
      --looks_;
      return State::kInProgress;
    }
    // What was called only now comes to its stream.
    if (pending_) std::exchange(pending_, nullptr)();
    return State::kReady;
  }
  absl::Status Send(std::span<const std::byte> bytes, device::Stream& stream) override {
    return Issue([this, bytes, &stream] {
      device_->Queue(stream, bytes,
                     [pair = pair_, rank = rank_, bytes, aborted = aborted_,
                      dead = dead_](const std::atomic<bool>& abandoned) {
                       if (*dead) return Hang(*aborted, abandoned);
                       FakeNcclNetwork::Transfer transfer{.bytes = bytes};
                       Until(*pair, *aborted, abandoned, [&] {
                         if (transfer.taken) return true;
                         if (pair->sending[rank] == nullptr) pair->sending[rank] = &transfer;
                         return false;
                       });
                       const std::lock_guard lock(pair->mutex);
                       if (pair->sending[rank] == &transfer) pair->sending[rank] = nullptr;
                     });
    });
  }
  absl::Status Receive(std::span<std::byte> bytes, device::Stream& stream) override {
    return Issue([this, bytes, &stream] {
      device_->Queue(stream, bytes,
                     [network = network_, pair = pair_, rank = rank_, bytes, aborted = aborted_,
                      dead = dead_](const std::atomic<bool>& abandoned) {
                       if (*dead) return Hang(*aborted, abandoned);
                       Until(*pair, *aborted, abandoned, [&] {
                         FakeNcclNetwork::Transfer* transfer = pair->sending[1 - rank];
                         if (transfer == nullptr || pair->mismatch) return false;
                         if (transfer->bytes.size() != bytes.size()) {
                           ADD_FAILURE() << "a receive of " << bytes.size()
                                         << " bytes meets a send of " << transfer->bytes.size();
                           pair->mismatch = true;
                           return false;
                         }
                         std::memcpy(bytes.data(), transfer->bytes.data(), bytes.size());
                         if (network->damage_ > 0) {
                           --network->damage_;
                           bytes.back() ^= std::byte{1};
                         }
                         transfer->taken = true;
                         pair->sending[1 - rank] = nullptr;
                         return true;
                       });
                     });
    });
  }
  void Abort() override {
    while (network_->hang_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    {
      const std::lock_guard lock(pair_->mutex);
      EXPECT_FALSE(*aborted_) << "aborted twice";
      pair_->ended[rank_] = true;
      pair_->ended_at = std::chrono::steady_clock::now();
    }
    *aborted_ = true;
    device_->Give(network_->options_.communicator_bytes);
    --network_->communicators_;
  }

 private:
  static constexpr auto kLook = std::chrono::microseconds(20);
  static constexpr auto kNews = std::chrono::milliseconds(50);

  static void Hang(const std::atomic<bool>& aborted, const std::atomic<bool>& abandoned) {
    while (!aborted && !abandoned) std::this_thread::sleep_for(kLook);
  }
  // Until `done` (asked with the pair's mutex held), or the communicator was aborted. What the peer
  // does not answer hangs.
  template <typename Done>
  static void Until(FakeNcclNetwork::Pair& pair, const std::atomic<bool>& aborted,
                    const std::atomic<bool>& abandoned, const Done& done) {
    while (!aborted && !abandoned) {
      {
        const std::lock_guard lock(pair.mutex);
        if (done()) return;
      }
      std::this_thread::sleep_for(kLook);
    }
  }
  void CheckThread() const {
    EXPECT_EQ(std::this_thread::get_id(), thread_) << "two threads use a communicator";
    EXPECT_FALSE(*aborted_) << "used after its abort";
  }
  absl::Status Issue(std::function<void()> queue) {
    CheckThread();
    EXPECT_FALSE(failed_) << "an operation after an error";
    EXPECT_TRUE(looks_ == 0 && pending_ == nullptr) << "an operation while one is in progress";
    looks_ = network_->Looks();
    if (looks_ == 0) {
      queue();
    } else {
      pending_ = std::move(queue);
    }
    return absl::OkStatus();
  }
  std::optional<absl::Status> Error() const {
    const std::lock_guard lock(pair_->mutex);
    if (pair_->mismatch) return base::Unavailable("sizes do not match");
    if (network_->options_.tells_of_the_end && pair_->ended[1 - rank_] &&
        std::chrono::steady_clock::now() - pair_->ended_at > kNews) {
      return base::Unavailable("remote process exited or there was a network error");
    }
    return std::nullopt;
  }

  FakeNcclNetwork* const network_;
  FakeDevice* const device_;
  const std::shared_ptr<FakeNcclNetwork::Pair> pair_;
  const int rank_;
  const std::atomic<bool>* const dead_;
  const std::shared_ptr<std::atomic<bool>> aborted_ = std::make_shared<std::atomic<bool>>(false);
  std::thread::id thread_;
  int looks_ = 0;
  bool failed_ = false;
  std::function<void()> pending_;
};

class FakeNccl final : public channel::Nccl {
 public:
  FakeNccl(FakeNcclNetwork* network, FakeDevice* device, int version = 22809)
      : network_(network), device_(device), version_(version) {}

  int version() const override { return version_; }
  absl::StatusOr<channel::NcclUniqueId> MakeUniqueId() override {
    static std::atomic<uint64_t> counter{0};
    channel::NcclUniqueId id{};
    const uint64_t number = ++counter;
    std::memcpy(id.data(), &number, sizeof(number));
    return id;
  }
  absl::StatusOr<std::unique_ptr<channel::NcclCommunicator>> Join(const channel::NcclUniqueId& id,
                                                                  int rank) override {
    RETURN_IF_ERROR(device_->Take(network_->options_.communicator_bytes));
    auto pair = network_->Find(id);
    {
      const std::lock_guard lock(pair->mutex);
      EXPECT_FALSE(pair->joined[rank]) << "rank " << rank << " has joined before";
      pair->joined[rank] = !dead_;
    }
    return std::make_unique<FakeCommunicator>(network_, device_, std::move(pair), rank, &dead_);
  }
  device::Device& device() override { return *device_; }

  // As if the process were gone, or its device hung: nothing that it issues ever ends, and nobody
  // is told.
  void Die() { dead_ = true; }

 private:
  FakeNcclNetwork* const network_;
  FakeDevice* const device_;
  const int version_;
  std::atomic<bool> dead_{false};
};

}  // namespace smartgen::fakes
