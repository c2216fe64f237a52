#include "common/channel/nccl/nccl_engine.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/base/signals.h"
#include "common/channel/nccl/nccl_channel.h"

namespace smartgen::channel {
namespace {

// While something runs on the device, and while nothing does.
constexpr base::Duration kBusyPoll = std::chrono::microseconds(50);
constexpr base::Duration kIdlePoll = std::chrono::milliseconds(50);
// At the end: for the TCP channels to close.
constexpr base::Duration kClosePatience = std::chrono::seconds(2);

using ChannelPtr = std::shared_ptr<NcclChannel>;

// A communicator that is being aborted, by a thread of its own.
struct Burial {
  NcclChannel::Remains remains;
  base::TimePoint begun;
  std::string peer;
  // Shared with the thread, which may outlive the burial if it hangs.
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  std::unique_ptr<device::Event> end;  // of the stream's work, recorded after the abort
};

class Engine final : public NcclEngine {
 public:
  Engine(Options options, Nccl* nccl, TcpEngine* tcp, const base::Clock* clock)
      : options_(std::move(options)), nccl_(nccl), tcp_(tcp), clock_(clock) {}
  ~Engine() override;
  absl::Status Start();

  const Options& options() const override { return options_; }
  int version() const override { return nccl_->version(); }
  absl::StatusOr<NcclTicket> MakeTicket() override;
  void Expect(const base::ChannelKey& key, const NcclTicket& ticket,
              std::shared_ptr<Receiver> receiver, base::Duration timeout,
              OnChannel on_channel) override;
  absl::StatusOr<std::shared_ptr<Channel>> Connect(const std::string& host, int port,
                                                   const base::ChannelKey& key,
                                                   const NcclTicket& ticket,
                                                   std::shared_ptr<Receiver> receiver,
                                                   base::Deadline deadline) override;
  NcclStats stats() const override;

 private:
  absl::Status CheckRoom() const;
  absl::StatusOr<ChannelPtr> NewChannel(NcclChannel::Role role, const NcclTicket& ticket,
                                        std::shared_ptr<Receiver> receiver, OnChannel on_channel);

  // The engine's thread.
  void Loop();
  bool WorkOnChannels();
  void CloseAll();
  void Begin(const ChannelPtr& channel, base::TimePoint due);
  void ChooseTurn();
  void Fail(const ChannelPtr& channel, const absl::Status& reason);
  void Bury(NcclChannel::Remains remains, std::string peer);
  void WorkOnBurials();
  absl::StatusOr<bool> IsOver(Burial& burial);
  void Stuck(const std::string& why);
  void PublishStats();

  const Options options_;
  Nccl* const nccl_;
  TcpEngine* const tcp_;
  const base::Clock* const clock_;
  const std::shared_ptr<CommandQueue> commands_ = std::make_shared<CommandQueue>();
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<device::Stream> copies_;
  std::atomic<uint32_t> epochs_{0};
  std::atomic<bool> stop_{false};

  mutable base::Mutex mutex_;
  NcclStats stats_ ABSL_GUARDED_BY(mutex_);
  int reserved_ ABSL_GUARDED_BY(mutex_) = 0;  // channels, counted from NewChannel on

  // Of the engine's thread.
  std::vector<ChannelPtr> channels_;
  std::list<Burial> burials_;
  int64_t aborts_ = 0;
  ChannelPtr turn_;
  int turn_left_ = 0;
  bool stuck_ = false;
  std::thread thread_;
};

absl::Status Engine::Start() {
  if (options_.slots < 2 || options_.piece_bytes == 0 || options_.turn_pieces < 1 ||
      options_.max_pairs < 1) {
    return base::InvalidArgument(
        "nccl: want at least 2 slots, pieces of a byte, turns of a piece and one pair; got {}, {}, "
        "{}, {}",
        options_.slots, options_.piece_bytes, options_.turn_pieces, options_.max_pairs);
  }
  ASSIGN_OR_RETURN(staging_, Staging::Create(&nccl_->device(), options_.slots,
                                             static_cast<size_t>(options_.piece_bytes)));
  ASSIGN_OR_RETURN(copies_, nccl_->device().CreateStream());
  thread_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

Engine::~Engine() {
  if (!thread_.joinable()) return;
  stop_ = true;
  commands_->Post([] {});
  thread_.join();
}

absl::StatusOr<NcclTicket> Engine::MakeTicket() {
  // An id costs a thread and a socket of NCCL's until both ranks have joined: none in vain.
  RETURN_IF_ERROR(CheckRoom());
  NcclTicket ticket;
  ASSIGN_OR_RETURN(ticket.id, nccl_->MakeUniqueId());
  ticket.epoch = ++epochs_;
  return ticket;
}

NcclStats Engine::stats() const {
  base::MutexLock lock(mutex_);
  return stats_;
}

absl::Status Engine::CheckRoom() const {
  base::MutexLock lock(mutex_);
  const int standing = reserved_ + stats_.aborting;
  if (standing < options_.max_pairs) return absl::OkStatus();
  return base::ResourceExhausted("nccl: {} communicators stand already (nccl.max_pairs)", standing);
}

absl::StatusOr<ChannelPtr> Engine::NewChannel(NcclChannel::Role role, const NcclTicket& ticket,
                                              std::shared_ptr<Receiver> receiver,
                                              OnChannel on_channel) {
  RETURN_IF_ERROR(CheckRoom());
  {
    base::MutexLock lock(mutex_);
    ++reserved_;
  }
  NcclChannel::Options options;
  options.role = role;
  options.epoch = ticket.epoch;
  options.id = ticket.id;
  // So that one pair cannot keep the others from all slots.
  options.max_in_flight = std::max(1, options_.slots / 2);
  options.window_bytes = options_.window_bytes;
  options.max_queued_bytes = options_.max_queued_bytes;
  options.max_queued_messages = options_.max_queued_messages;
  options.piece_timeout = options_.piece_timeout;
  options.offer_timeout = options_.offer_timeout;
  NcclChannel::Parts parts{.nccl = nccl_,
                           .staging = staging_.get(),
                           .copies = copies_.get(),
                           .clock = clock_,
                           .commands = commands_};
  return std::make_shared<NcclChannel>(options, std::move(parts), std::move(receiver),
                                       std::move(on_channel));
}

void Engine::Expect(const base::ChannelKey& key, const NcclTicket& ticket,
                    std::shared_ptr<Receiver> receiver, base::Duration timeout,
                    OnChannel on_channel) {
  const base::TimePoint due = clock_->Now() + timeout;
  // on_channel is needed here if there is no channel to give it to.
  auto shared = std::make_shared<OnChannel>(std::move(on_channel));
  auto made = NewChannel(NcclChannel::Role::kSender, ticket, std::move(receiver),
                         [shared](absl::StatusOr<std::shared_ptr<Channel>> channel) {
                           (*shared)(std::move(channel));
                         });
  if (!made.ok()) {
    if (!commands_->Post([shared, status = made.status()] { (*shared)(status); })) {
      (*shared)(made.status());
    }
    return;
  }
  const ChannelPtr channel = *std::move(made);
  if (!commands_->Post([this, channel] { channels_.push_back(channel); })) {
    (*shared)(base::Cancelled("the NCCL engine has ended"));
    return;
  }
  tcp_->Expect(
      key, channel->TcpReceiver(), timeout,
      [this, channel, due, commands = commands_](absl::StatusOr<std::shared_ptr<Channel>> tcp) {
        if (!tcp.ok()) return channel->Close(tcp.status());
        channel->SetTcp(*tcp);
        if (!commands->Post([this, channel, due] { Begin(channel, due); })) {
          (*tcp)->Close(base::Cancelled("the NCCL engine has ended"));
        }
      });
}

absl::StatusOr<std::shared_ptr<Channel>> Engine::Connect(const std::string& host, int port,
                                                         const base::ChannelKey& key,
                                                         const NcclTicket& ticket,
                                                         std::shared_ptr<Receiver> receiver,
                                                         base::Deadline deadline) {
  struct Waiting {
    base::Mutex mutex;
    base::CondVar changed;
    bool done = false;
    absl::StatusOr<std::shared_ptr<Channel>> channel = base::Cancelled("the NCCL engine has ended");
  };
  const auto waiting = std::make_shared<Waiting>();
  ASSIGN_OR_RETURN(const ChannelPtr channel,
                   NewChannel(NcclChannel::Role::kReceiver, ticket, std::move(receiver),
                              [waiting](absl::StatusOr<std::shared_ptr<Channel>> result) {
                                base::MutexLock lock(waiting->mutex);
                                waiting->channel = std::move(result);
                                waiting->done = true;
                                waiting->changed.NotifyAll();
                              }));
  if (!commands_->Post([this, channel] { channels_.push_back(channel); })) {
    return base::Cancelled("the NCCL engine has ended");
  }
  auto tcp = tcp_->Connect(host, port, key, channel->TcpReceiver(), deadline);
  if (!tcp.ok()) {
    channel->Close(tcp.status());
    return tcp.status();
  }
  channel->SetTcp(*tcp);
  if (!commands_->Post([this, channel, due = deadline.at()] { Begin(channel, due); })) {
    (*tcp)->Close(base::Cancelled("the NCCL engine has ended"));
  }
  base::MutexLock lock(waiting->mutex);
  // The channel itself ends at the deadline; a little longer for the engine to say so.
  const auto end = base::Deadline::At(deadline.at() + kClosePatience);
  while (!waiting->done && !end.Expired(*clock_)) {
    waiting->changed.WaitFor(waiting->mutex, std::chrono::milliseconds(20));
  }
  if (!waiting->done) {
    const absl::Status late =
        base::DeadlineExceeded("nccl: no channel to {}:{} in time", host, port);
    channel->Close(late);
    return late;
  }
  return waiting->channel;
}

// ---- The engine's thread ----

void Engine::Loop() {
  bool busy = false;
  base::TimePoint end{};
  while (true) {
    for (auto& command : commands_->Take(busy ? kBusyPoll : kIdlePoll)) command();
    busy = WorkOnChannels();
    WorkOnBurials();
    PublishStats();
    if (!stop_) continue;
    busy = true;
    if (end == base::TimePoint{}) {
      end = clock_->Now() + kClosePatience + options_.abort_timeout;
    }
    for (const ChannelPtr& channel : channels_) {
      channel->Close(base::Cancelled("the NCCL engine was shut down"));
    }
    if ((channels_.empty() && burials_.empty()) || clock_->Now() >= end) break;
  }
  CloseAll();
}

// Whoever waits for a channel's beginning or end hears of it, even if its TCP channel says nothing.
void Engine::CloseAll() {
  for (auto& command : commands_->Stop()) command();
  turn_.reset();
  for (const ChannelPtr& channel : std::exchange(channels_, {})) {
    if (channel->state() < NcclChannel::State::kClosing) {
      Fail(channel, base::Cancelled("the NCCL engine was shut down"));
    }
    if (channel->state() != NcclChannel::State::kClosed) channel->OnTcpClosed();
  }
}

void Engine::Begin(const ChannelPtr& channel, base::TimePoint due) {
  absl::Status status = base::Cancelled("the channel has ended before it began");
  if (channel->state() == NcclChannel::State::kWaiting) status = channel->Begin(due);
  if (status.ok()) return;
  channel->Close(status);
  // If it has failed before it knew of its TCP channel.
  channel->CloseTcp(status);
}

bool Engine::WorkOnChannels() {
  bool busy = false;
  ChooseTurn();
  const base::TimePoint now = clock_->Now();
  const std::vector<ChannelPtr> channels = channels_;
  for (const ChannelPtr& channel : channels) {
    if (channel->state() >= NcclChannel::State::kClosing) continue;
    int none = 0;
    absl::StatusOr<bool> more = channel->Work(now, channel == turn_ ? &turn_left_ : &none);
    if (!more.ok()) {
      Fail(channel, more.status());
    } else if (*more) {
      busy = true;
    }
  }
  std::erase_if(channels_, [&](const ChannelPtr& channel) {
    if (channel->state() != NcclChannel::State::kClosed) return false;
    base::MutexLock lock(mutex_);
    --reserved_;
    return true;
  });
  return busy || !burials_.empty();
}

void Engine::ChooseTurn() {
  const auto wants = [](const ChannelPtr& channel) { return channel->WantsTurn(); };
  if (turn_ != nullptr && turn_->receiving() > 0) {
    // Nobody else waits: on it goes, without a gap.
    const bool alone = std::none_of(channels_.begin(), channels_.end(), [&](const auto& channel) {
      return channel != turn_ && channel->WantsTurn();
    });
    if (turn_left_ == 0 && alone) turn_left_ = options_.turn_pieces;
    return;
  }
  if (turn_ != nullptr && turn_left_ > 0 && turn_->WantsTurn()) return;
  // What is being aborted may hold the device: nothing is put behind it.
  if (!burials_.empty()) {
    turn_.reset();
    return;
  }
  // The next after the one whose turn it was.
  const auto at = std::find(channels_.begin(), channels_.end(), turn_);
  const auto after = at == channels_.end() ? channels_.begin() : at + 1;
  auto next = std::find_if(after, channels_.end(), wants);
  if (next == channels_.end()) next = std::find_if(channels_.begin(), after, wants);
  const bool none = next == channels_.end() || !wants(*next);
  turn_ = none ? nullptr : *next;
  turn_left_ = none ? 0 : options_.turn_pieces;
}

void Engine::Fail(const ChannelPtr& channel, const absl::Status& reason) {
  const std::string peer = channel->peer();
  Bury(channel->Fail(reason), peer);
  if (turn_ == channel) turn_.reset();
}

void Engine::Bury(NcclChannel::Remains remains, std::string peer) {
  if (remains.communicator == nullptr) {
    // Nothing was issued without one.
    for (Slot* slot : remains.slots) staging_->Return(slot);
    return;
  }
  Burial& burial = burials_.emplace_back();
  burial.remains = std::move(remains);
  burial.begun = clock_->Now();
  burial.peer = std::move(peer);
  std::thread([communicator =
                   std::shared_ptr<NcclCommunicator>(std::move(burial.remains.communicator)),
               aborted = burial.aborted]() mutable {
    communicator->Abort();
    communicator.reset();
    *aborted = true;
  }).detach();
}

absl::StatusOr<bool> Engine::IsOver(Burial& burial) {
  if (!*burial.aborted) return false;
  if (burial.end == nullptr) {
    ASSIGN_OR_RETURN(auto end, nccl_->device().CreateEvent());
    RETURN_IF_ERROR(burial.remains.stream->Record(*end));
    burial.end = std::move(end);
  }
  return nccl_->device().Reached(*burial.end);
}

void Engine::WorkOnBurials() {
  for (auto it = burials_.begin(); it != burials_.end();) {
    const auto here = it++;
    const auto over = IsOver(*here);
    if (over.ok() && *over) {
      for (Slot* slot : here->remains.slots) staging_->Return(slot);
      ++aborts_;
      burials_.erase(here);
    } else if (!over.ok()) {
      Stuck(fmt::format("the device has failed: {}", base::MessageOf(over.status())));
    } else if (clock_->Now() - here->begun >= options_.abort_timeout) {
      Stuck(fmt::format("aborting the communicator with {} has not ended within {:g} s", here->peer,
                        base::ToSeconds(options_.abort_timeout)));
    }
  }
}

void Engine::Stuck(const std::string& why) {
  if (std::exchange(stuck_, true)) return;
  SMARTGEN_LOG(error, "channel", "nccl: {}; the process must be started anew", why);
  if (options_.on_stuck) {
    options_.on_stuck(why);
  } else {
    base::ExitNow(base::kStartAnew);
  }
}

void Engine::PublishStats() {
  NcclStats stats;
  stats.channels = static_cast<int>(channels_.size());
  stats.aborting = static_cast<int>(burials_.size());
  for (const ChannelPtr& channel : channels_) {
    stats.communicator_bytes += channel->communicator_bytes();
  }
  stats.staging_bytes = static_cast<uint64_t>(staging_->size()) * staging_->slot_bytes();
  stats.aborts = aborts_;
  stats.free_slots = staging_->free();
  base::MutexLock lock(mutex_);
  stats_ = stats;
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclEngine>> NcclEngine::Create(Options options, Nccl* nccl,
                                                               TcpEngine* tcp,
                                                               const base::Clock* clock) {
  auto engine = std::make_unique<Engine>(std::move(options), nccl, tcp, clock);
  RETURN_IF_ERROR(engine->Start());
  return engine;
}

}  // namespace smartgen::channel
