// Two ends of a KV transfer over a real loopback channel, optionally with faults.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <vector>

#include "common/base/hash.h"
#include "common/base/mutex.h"
#include "common/channel/fault_channel.h"
#include "common/channel/tcp/tcp_engine.h"
#include "common/transfer/transfer.h"

namespace smartgen::transfer {

inline base::Deadline In(base::Duration d) {
  return base::Deadline::After(*base::Clock::Real(), d);
}

// The sender needs no receiver of its own: nothing comes back on the channel.
class IgnoreAll : public channel::Receiver {
 public:
  absl::StatusOr<channel::Placement> OnHead(channel::Lane, std::span<const std::byte>,
                                            uint64_t) override {
    return base::Unimplemented("nothing is expected here");
  }
  void OnPayload(channel::Lane, std::span<const std::byte>, channel::Placement) override {}
  void OnClosed(const absl::Status&) override {}
};

// What happened, for tests to wait on.
class EventLog {
 public:
  void Add(const std::string& what, int64_t amount = 1) {
    base::MutexLock lock(mutex_);
    counts_[what] += amount;
    changed_.NotifyAll();
  }
  int64_t count(const std::string& what) const {
    base::MutexLock lock(mutex_);
    const auto it = counts_.find(what);
    return it == counts_.end() ? 0 : it->second;
  }
  bool WaitFor(const std::string& what, int64_t count,
               base::Duration limit = std::chrono::seconds(60)) {
    const base::Deadline deadline = In(limit);
    base::MutexLock lock(mutex_);
    while (counts_[what] < count) {
      if (deadline.Expired(*base::Clock::Real())) return false;
      changed_.WaitFor(mutex_, std::chrono::milliseconds(20));
    }
    return true;
  }

 private:
  mutable base::Mutex mutex_;
  base::CondVar changed_;
  std::map<std::string, int64_t> counts_ ABSL_GUARDED_BY(mutex_);
};

class TransferFixture : public testing::Test {
 protected:
  static constexpr uint64_t kSenderIncarnation = 11;
  static constexpr uint64_t kReceiverIncarnation = 22;

  static kv::KvLayout Layout() {
    return {.layers = {{.kv_heads = 2, .head_dim = 8},
                       {.kv_heads = 1, .head_dim = 16},
                       {.kv_heads = 3, .head_dim = 4}},
            .dtype = kv::DType::kF32,
            .token_capacity = 4096};
  }
  static std::unique_ptr<kv::KvPool> MakePool(int64_t pages = 512) {
    auto pool = kv::KvPool::Create(Layout(), {.bytes = pages * Layout().PageBytesTotal()});
    EXPECT_TRUE(pool.ok()) << pool.status();
    return *std::move(pool);
  }

  // Without a channel: the test calls the receiver itself.
  void CreateReceiver() {
    receiver_ = TransferReceiver::Create(
        {.own_incarnation = kReceiverIncarnation, .peer_incarnation = kSenderIncarnation},
        {.on_refused = [this](Refusal refusal,
                              uint64_t) { log_.Add(std::string(RefusalName(refusal))); },
         .on_damaged =
             [this](const base::TransferId&, std::span<const LayerRange> ranges) {
               log_.Add("damaged");
               for (const LayerRange& range : ranges) {
                 log_.Add("damaged tokens", range.end - range.begin);
               }
             },
         .on_closed = [this](const absl::Status&) { log_.Add("closed"); }});
  }
  void Connect(TransferSender::Options options = {}, const channel::FaultOptions* faults = nullptr,
               channel::TcpEngine::Options tcp = {}) {
    CreateReceiver();
    tcp.listen = "127.0.0.1:0";
    listener_ = *channel::TcpEngine::Create(tcp, base::Clock::Real());
    tcp.listen.clear();
    dialler_ = *channel::TcpEngine::Create(tcp, base::Clock::Real());
    const base::ChannelKey key = base::NewChannelKey();
    std::promise<std::shared_ptr<channel::Channel>> paired;
    // As in the daemons: the sender's side listens, the receiver's side dials.
    listener_->Expect(key, std::make_shared<IgnoreAll>(), std::chrono::seconds(20),
                      [&](auto result) { paired.set_value(*std::move(result)); });
    auto dialled = dialler_->Connect("127.0.0.1", listener_->listen_port(), key, receiver_,
                                     In(std::chrono::seconds(20)));
    ASSERT_TRUE(dialled.ok()) << dialled.status();
    receiving_ = *std::move(dialled);
    sending_ = paired.get_future().get();
    if (faults != nullptr) {
      faulty_ = channel::FaultChannel::Wrap(sending_, *faults);
      sending_ = faulty_;
    }
    options.own_incarnation = kSenderIncarnation;
    options.peer_incarnation = kReceiverIncarnation;
    sender_ = std::make_unique<TransferSender>(sending_, options);
  }

  std::shared_ptr<kv::KvSequence> NewSequence(kv::KvPool& pool, int64_t tokens) {
    auto sequence = std::make_shared<kv::KvSequence>(&pool);
    EXPECT_TRUE(sequence->Reserve(tokens).ok());
    return sequence;
  }
  // A value that names transfer, layer and place.
  static uint32_t Word(uint64_t seed, int layer, size_t index) {
    return static_cast<uint32_t>((seed * 1'000'003 + static_cast<uint64_t>(layer) * 7919 + index) *
                                 2'654'435'761u);
  }
  // The KV of a filled sequence: for each layer, page by page in memory order.
  static void Fill(kv::KvSequence& sequence, uint64_t seed, int64_t tokens) {
    for (int layer = 0; layer < Layout().num_layers(); ++layer) {
      size_t index = 0;
      for (int64_t page = 0; page * kv::kPageTokens < tokens; ++page) {
        std::byte* at = sequence.Page(layer, page);
        for (int64_t i = 0; i < Layout().PageBytes(layer) / 4; ++i, ++index) {
          const uint32_t word = Word(seed, layer, index);
          std::memcpy(at + i * 4, &word, 4);
        }
      }
      sequence.MarkLocal(layer, 0, tokens);
    }
  }
  // True if tokens [begin, end) of a layer have the same bytes on both sides.
  static bool Equal(kv::KvSequence& a, kv::KvSequence& b, int layer, int64_t begin, int64_t end) {
    return HashOf(a, layer, begin, end) == HashOf(b, layer, begin, end);
  }
  static uint64_t HashOf(kv::KvSequence& sequence, int layer, int64_t begin, int64_t end) {
    base::Hasher64 hasher;
    for (const auto& segment : sequence.Segments(layer, begin, end)) hasher.Update(segment);
    return hasher.Digest();
  }
  std::function<void(const absl::Status&)> OnSent() {
    return [this](const absl::Status& status) {
      log_.Add("on_sent");
      log_.Add(status.ok() ? "sent" : absl::IsCancelled(status) ? "sent cancelled" : "sent failed");
    };
  }
  absl::Status BeginReceive(const base::TransferId& id, std::shared_ptr<kv::KvSequence> sequence,
                            int64_t begin, int64_t end) {
    return receiver_->Begin({.id = id,
                             .sequence = std::move(sequence),
                             .begin = begin,
                             .end = end,
                             .on_layer =
                                 [this](int layer) {
                                   log_.Add("progress");
                                   log_.Add("layer " + std::to_string(layer));
                                 },
                             .on_complete = [this] { log_.Add("complete"); },
                             .on_arrival = [this] { log_.Add("arrival"); }});
  }
  absl::Status BeginSend(const base::TransferId& id, std::shared_ptr<kv::KvSequence> sequence,
                         int64_t begin, int64_t end) {
    return sender_->Begin({.id = id,
                           .sequence = std::move(sequence),
                           .begin = begin,
                           .end = end,
                           .full = true,
                           .on_sent = OnSent()});
  }
  void SendLayers(const base::TransferId& id, int64_t begin, int64_t end) {
    for (int layer = 0; layer < Layout().num_layers(); ++layer) {
      ASSERT_TRUE(sender_->LayerReady(id, {.layer = layer, .begin = begin, .end = end}).ok());
    }
  }

  // In the order of dependence: engines go first, pools last.
  std::unique_ptr<kv::KvPool> source_pool_ = MakePool();
  std::unique_ptr<kv::KvPool> target_pool_ = MakePool();
  EventLog log_;
  std::shared_ptr<TransferReceiver> receiver_;
  std::shared_ptr<channel::Channel> sending_;
  std::shared_ptr<channel::Channel> receiving_;
  std::shared_ptr<channel::FaultChannel> faulty_;
  std::unique_ptr<channel::TcpEngine> listener_;
  std::unique_ptr<channel::TcpEngine> dialler_;
  std::unique_ptr<TransferSender> sender_;
};

}  // namespace smartgen::transfer
