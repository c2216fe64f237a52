#include "common/channel/tcp/tcp_engine.h"

#include <openssl/crypto.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "common/base/log.h"
#include "common/channel/tcp/frame.h"
#include "common/channel/tcp/socket.h"
#include "common/channel/tcp/tcp_channel.h"
#include "common/channel/tcp/waker.h"

namespace smartgen::channel {
namespace {

// Sockets that have not shown a key yet. The oldest makes room for one more: a rightful peer sends
// its key at once, so that it is never the oldest for long.
constexpr size_t kMaxUnauthenticated = 64;
constexpr size_t kScratchBytes = 64 << 10;
// How often deadlines are looked at while there are any (the clock may be a simulated one), and how
// long the thread sleeps otherwise.
constexpr base::Duration kTick = std::chrono::milliseconds(20);
constexpr int kTickMilliseconds = 20;
constexpr int kIdleMilliseconds = 1000;
// How soon a lane at its limit of bytes in flight is looked at again: no event tells when bytes are
// acknowledged. A limit is worth 2 ms or more of the link (transfer's window), so that the link
// does not run dry meanwhile, and 2,000 looks a second cost next to nothing.
constexpr base::Duration kThrottlePoll = std::chrono::microseconds(500);
// No file descriptors left: accept again after this.
constexpr base::Duration kAcceptPause = std::chrono::milliseconds(100);

// An epoll event's data is id << 3 | kind; kinds below kNumLanes are a channel's lanes.
constexpr uint64_t kKindPending = 4;
constexpr uint64_t kKindListener = 5;
constexpr uint64_t kKindWake = 6;
constexpr uint64_t EventData(uint64_t id, uint64_t kind) { return id << 3 | kind; }

base::Duration Remaining(base::TimePoint due) {
  return std::max(base::Duration(0), due - base::Clock::Real()->Now());
}

// To the nanosecond where the system can (Linux 5.11), else to the next millisecond.
int EpollWait(int epoll, std::span<epoll_event> events, base::Duration timeout) {
  const int size = static_cast<int>(events.size());
  const timespec wait{.tv_sec = timeout.count() / 1'000'000'000,
                      .tv_nsec = timeout.count() % 1'000'000'000};
  const int n = epoll_pwait2(epoll, events.data(), size, &wait, nullptr);
  if (n >= 0 || errno != ENOSYS) return n;
  const int64_t ms = (timeout.count() + 999'999) / 1'000'000;
  return epoll_wait(epoll, events.data(), size, static_cast<int>(ms));
}

class Engine final : public TcpEngine {
 public:
  Engine(Options options, const base::Clock* clock, std::shared_ptr<Waker> waker, Fd epoll)
      : options_(std::move(options)),
        clock_(clock),
        waker_(std::move(waker)),
        epoll_(std::move(epoll)),
        scratch_(kScratchBytes) {}
  ~Engine() override;

  absl::Status Start();
  int listen_port() const override { return port_; }
  void Expect(const base::ChannelKey& key, std::shared_ptr<Receiver> receiver,
              base::Duration timeout, OnChannel on_channel) override;
  absl::StatusOr<std::shared_ptr<Channel>> Connect(const std::string& host, int port,
                                                   const base::ChannelKey& key,
                                                   std::shared_ptr<Receiver> receiver,
                                                   base::Deadline deadline) override;

 private:
  // A socket that has not shown its key.
  struct Pending {
    Fd fd;
    base::TimePoint due;
    std::array<std::byte, kPreambleBytes> bytes;
    size_t have = 0;
  };
  // A key that has not been shown by all lanes.
  struct Expected {
    base::ChannelKey key;
    std::shared_ptr<Receiver> receiver;
    base::TimePoint due;
    OnChannel on_channel;
    TcpChannel::Sockets sockets;
    int lanes = 0;
  };

  SocketOptions MakeSocketOptions() const {
    return {.notsent_lowat_bytes = options_.notsent_lowat_bytes,
            .buffer_bytes = options_.socket_buffer_bytes,
            .user_timeout = options_.stall_timeout};
  }
  std::shared_ptr<TcpChannel> MakeChannel(TcpChannel::Sockets sockets,
                                          std::shared_ptr<Receiver> receiver);
  absl::StatusOr<TcpChannel::Sockets> DialLanes(const std::string& host, int port,
                                                const base::ChannelKey& key,
                                                base::Deadline deadline);
  absl::Status Watch(int fd, uint32_t events, uint64_t data);

  void Loop();
  void Wait();
  void HandleEvent(uint64_t data, uint32_t events);
  void RunPosted();
  void WorkOnChannels();
  void Accept();
  void ReadPreamble(uint64_t id);
  void Pair(Fd fd, const Preamble& preamble);
  void Finish(Expected expected);
  absl::Status Adopt(const std::shared_ptr<TcpChannel>& channel);
  void Activate(const std::shared_ptr<TcpChannel>& channel);
  void CloseChannel(uint64_t id, const absl::Status& reason);
  void CheckTimeouts();
  void ShutDownAll();

  const Options options_;
  const base::Clock* const clock_;
  const std::shared_ptr<Waker> waker_;
  const Fd epoll_;
  Fd listener_;
  int port_ = 0;
  std::thread thread_;

  // Of the I/O thread alone.
  std::vector<std::byte> scratch_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, Pending> pending_;  // by id: the oldest first
  std::list<Expected> expected_;
  std::map<uint64_t, std::shared_ptr<TcpChannel>> channels_;
  std::vector<std::shared_ptr<TcpChannel>> active_;     // with work to do
  std::vector<std::shared_ptr<TcpChannel>> throttled_;  // with work to do at throttle_due_
  base::TimePoint throttle_due_;                        // on the real clock
  base::TimePoint next_check_;
  std::optional<base::TimePoint> accept_again_;
};

Engine::~Engine() {
  waker_->Stop();
  if (thread_.joinable()) thread_.join();
}

absl::Status Engine::Start() {
  RETURN_IF_ERROR(Watch(waker_->fd(), EPOLLIN | EPOLLET, EventData(0, kKindWake)));
  if (!options_.listen.empty()) {
    ASSIGN_OR_RETURN(listener_, ListenOn(options_.listen, options_.socket_buffer_bytes));
    ASSIGN_OR_RETURN(port_, LocalPort(listener_.get()));
    RETURN_IF_ERROR(Watch(listener_.get(), EPOLLIN, EventData(0, kKindListener)));
  }
  thread_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

absl::Status Engine::Watch(int fd, uint32_t events, uint64_t data) {
  epoll_event event{.events = events, .data = {.u64 = data}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return base::Unavailable("epoll_ctl: {}", ErrnoText(errno));
}

void Engine::Expect(const base::ChannelKey& key, std::shared_ptr<Receiver> receiver,
                    base::Duration timeout, OnChannel on_channel) {
  auto expected = std::make_shared<Expected>();
  expected->key = key;
  expected->receiver = std::move(receiver);
  expected->due = clock_->Now() + timeout;
  expected->on_channel = std::move(on_channel);
  waker_->PostCommand([this, expected] { expected_.push_back(std::move(*expected)); });
}

std::shared_ptr<TcpChannel> Engine::MakeChannel(TcpChannel::Sockets sockets,
                                                std::shared_ptr<Receiver> receiver) {
  return std::make_shared<TcpChannel>(
      std::move(sockets), std::move(receiver),
      TcpChannel::Options{.max_queued_bytes = options_.max_queued_bytes,
                          .max_queued_messages = options_.max_queued_messages,
                          .stall_timeout = options_.stall_timeout,
                          .scratch = scratch_},
      waker_);
}

absl::StatusOr<TcpChannel::Sockets> Engine::DialLanes(const std::string& host, int port,
                                                      const base::ChannelKey& key,
                                                      base::Deadline deadline) {
  ASSIGN_OR_RETURN(const std::vector<Address> addresses, Resolve(host, port));
  TcpChannel::Sockets sockets;
  for (int lane = 0; lane < kNumLanes; ++lane) {
    ASSIGN_OR_RETURN(sockets[lane],
                     Dial(addresses, options_.socket_buffer_bytes, *clock_, deadline));
    const int fd = sockets[lane].get();
    RETURN_IF_ERROR(ConfigureSocket(fd, MakeSocketOptions()));
    const auto preamble = EncodePreamble({.lane = static_cast<Lane>(lane), .key = key});
    RETURN_IF_ERROR(WriteFully(fd, preamble, *clock_, deadline));
  }
  for (int lane = 0; lane < kNumLanes; ++lane) {
    std::array<std::byte, kWelcomeBytes> welcome;
    RETURN_IF_ERROR(base::Annotate(ReadFully(sockets[lane].get(), welcome, *clock_, deadline),
                                   "waiting for the key to be accepted"));
    RETURN_IF_ERROR(CheckWelcome(welcome, static_cast<Lane>(lane)));
  }
  return sockets;
}

absl::StatusOr<std::shared_ptr<Channel>> Engine::Connect(const std::string& host, int port,
                                                         const base::ChannelKey& key,
                                                         std::shared_ptr<Receiver> receiver,
                                                         base::Deadline deadline) {
  deadline =
      base::Deadline::Earlier(deadline, base::Deadline::After(*clock_, options_.connect_timeout));
  absl::StatusOr<TcpChannel::Sockets> sockets = DialLanes(host, port, key, deadline);
  if (!sockets.ok()) {
    return base::Annotate(sockets.status(), fmt::format("data channel to {}:{}", host, port));
  }
  std::shared_ptr<TcpChannel> channel = MakeChannel(*std::move(sockets), std::move(receiver));
  const bool taken = waker_->PostCommand([this, channel] {
    if (const absl::Status status = Adopt(channel); !status.ok()) channel->Shutdown(status);
  });
  if (!taken) return base::Unavailable("the channel engine has stopped");
  return channel;
}

// ---- The I/O thread ----

void Engine::Loop() {
  while (!waker_->stopped()) {
    Wait();
    RunPosted();
    WorkOnChannels();
    if (clock_->Now() >= next_check_) CheckTimeouts();
  }
  RunPosted();
  ShutDownAll();
  RunPosted();  // lets go of channels that were posted meanwhile
  active_.clear();
  throttled_.clear();
}

void Engine::Wait() {
  base::Duration timeout{0};
  if (active_.empty() && waker_->PrepareSleep()) {
    const bool timed = !pending_.empty() || !expected_.empty() || accept_again_.has_value() ||
                       std::any_of(channels_.begin(), channels_.end(),
                                   [](const auto& entry) { return entry.second->MayTimeOut(); });
    timeout = std::chrono::milliseconds(timed ? kTickMilliseconds : kIdleMilliseconds);
    if (!throttled_.empty()) timeout = Remaining(throttle_due_);
  }
  std::array<epoll_event, 64> events;
  const int n = EpollWait(epoll_.get(), events, timeout);
  for (int i = 0; i < n; ++i) HandleEvent(events[i].data.u64, events[i].events);
  if (throttled_.empty() || Remaining(throttle_due_).count() > 0) return;
  for (const auto& channel : std::exchange(throttled_, {})) {
    channel->waiting = false;
    if (channels_.contains(channel->id)) Activate(channel);
  }
}

void Engine::HandleEvent(uint64_t data, uint32_t events) {
  const uint64_t id = data >> 3;
  const uint64_t kind = data & 7;
  if (kind == kKindWake) return;  // edge-triggered: nothing to read off
  if (kind == kKindListener) {
    Accept();
  } else if (kind == kKindPending) {
    ReadPreamble(id);
  } else if (const auto it = channels_.find(id); it != channels_.end()) {
    it->second->OnEvents(static_cast<int>(kind), events);
    Activate(it->second);
  }
}

void Engine::RunPosted() {
  Waker::Posted posted = waker_->Take();
  for (auto& command : posted.commands) command();
  for (auto& channel : posted.channels) {
    if (channels_.contains(channel->id)) Activate(channel);
  }
}

void Engine::Activate(const std::shared_ptr<TcpChannel>& channel) {
  if (std::exchange(channel->active, true)) return;
  active_.push_back(channel);
}

void Engine::WorkOnChannels() {
  std::vector<std::shared_ptr<TcpChannel>> work;
  work.swap(active_);
  const base::TimePoint now = clock_->Now();
  for (auto& channel : work) {
    channel->active = false;
    if (!channels_.contains(channel->id)) continue;
    const absl::StatusOr<bool> more = channel->Work(now);
    if (!more.ok()) {
      CloseChannel(channel->id, more.status());
    } else if (*more) {
      Activate(channel);
    } else if (channel->throttled() && !std::exchange(channel->waiting, true)) {
      if (throttled_.empty()) throttle_due_ = base::Clock::Real()->Now() + kThrottlePoll;
      throttled_.push_back(channel);
    }
  }
}

void Engine::Accept() {
  // The listener is level-triggered: what is left over is told again.
  constexpr int kAcceptsPerTurn = 16;
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      SMARTGEN_LOG(warn, "channel", "accepting: {}; again in 100 ms", ErrnoText(errno));
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
      accept_again_ = clock_->Now() + kAcceptPause;
      return;
    }
    if (!ConfigureSocket(fd.get(), MakeSocketOptions()).ok()) continue;
    if (pending_.size() >= kMaxUnauthenticated) pending_.erase(pending_.begin());
    const uint64_t id = ++last_id_;
    if (!Watch(fd.get(), EPOLLIN | EPOLLRDHUP, EventData(id, kKindPending)).ok()) continue;
    Pending& pending = pending_[id];
    pending.fd = std::move(fd);
    pending.due = clock_->Now() + options_.connect_timeout;
  }
}

void Engine::ReadPreamble(uint64_t id) {
  const auto it = pending_.find(id);
  if (it == pending_.end()) return;
  Pending& pending = it->second;
  // Never a byte more: what follows belongs to the channel.
  const ssize_t n =
      recv(pending.fd.get(), pending.bytes.data() + pending.have, kPreambleBytes - pending.have, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n > 0) pending.have += static_cast<size_t>(n);
  if (n > 0 && pending.have < kPreambleBytes) return;
  Fd fd = std::move(pending.fd);
  const auto bytes = pending.bytes;
  const bool complete = pending.have == kPreambleBytes;
  pending_.erase(it);
  if (!complete) return;
  const absl::StatusOr<Preamble> preamble = DecodePreamble(bytes);
  if (!preamble.ok()) {
    SMARTGEN_LOG(warn, "channel", "closed a socket from {}: {}", PeerName(fd.get()),
                 base::MessageOf(preamble.status()));
    return;
  }
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd.get(), nullptr);
  Pair(std::move(fd), *preamble);
}

void Engine::Pair(Fd fd, const Preamble& preamble) {
  // Every key is compared, and whole, so that time tells nothing about any.
  auto found = expected_.end();
  for (auto it = expected_.begin(); it != expected_.end(); ++it) {
    if (CRYPTO_memcmp(it->key.data(), preamble.key.data(), preamble.key.size()) == 0) found = it;
  }
  const int lane = static_cast<int>(preamble.lane);
  if (found == expected_.end() || found->sockets[lane].valid()) {
    SMARTGEN_LOG(warn, "channel", "closed a socket from {}, lane {}: {}", PeerName(fd.get()),
                 LaneName(preamble.lane),
                 found == expected_.end() ? "nobody expects its key" : "the lane is taken");
    return;
  }
  found->sockets[lane] = std::move(fd);
  if (++found->lanes < kNumLanes) return;
  Expected complete = std::move(*found);
  expected_.erase(found);  // the key is spent
  Finish(std::move(complete));
}

void Engine::Finish(Expected expected) {
  for (int lane = 0; lane < kNumLanes; ++lane) {
    // A fresh socket has room for these few bytes, or is broken.
    const auto welcome = EncodeWelcome(static_cast<Lane>(lane));
    const ssize_t n =
        send(expected.sockets[lane].get(), welcome.data(), welcome.size(), MSG_NOSIGNAL);
    if (n != static_cast<ssize_t>(welcome.size())) {
      expected.on_channel(base::Unavailable("the peer went away while pairing, lane {}: {}",
                                            LaneName(static_cast<Lane>(lane)), ErrnoText(errno)));
      return;
    }
  }
  const std::shared_ptr<TcpChannel> channel =
      MakeChannel(std::move(expected.sockets), std::move(expected.receiver));
  if (const absl::Status status = Adopt(channel); !status.ok()) {
    expected.on_channel(status);
    return;
  }
  expected.on_channel(std::shared_ptr<Channel>(channel));
}

absl::Status Engine::Adopt(const std::shared_ptr<TcpChannel>& channel) {
  channel->id = ++last_id_;
  for (int lane = 0; lane < kNumLanes; ++lane) {
    RETURN_IF_ERROR(Watch(channel->fd(lane), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                          EventData(channel->id, static_cast<uint64_t>(lane))));
  }
  channels_[channel->id] = channel;
  Activate(channel);
  return absl::OkStatus();
}

void Engine::CloseChannel(uint64_t id, const absl::Status& reason) {
  const auto it = channels_.find(id);
  if (it == channels_.end()) return;
  const std::shared_ptr<TcpChannel> channel = std::move(it->second);
  channels_.erase(it);
  channel->Shutdown(reason);
}

void Engine::CheckTimeouts() {
  const base::TimePoint now = clock_->Now();
  next_check_ = now + kTick;
  std::erase_if(pending_, [&](const auto& entry) { return now >= entry.second.due; });
  std::list<Expected> late;
  for (auto it = expected_.begin(); it != expected_.end();) {
    const auto here = it++;
    if (now >= here->due) late.splice(late.end(), expected_, here);
  }
  for (Expected& expected : late) {
    expected.on_channel(base::DeadlineExceeded("{} of {} lanes of the data channel came in time",
                                               expected.lanes, kNumLanes));
  }
  std::vector<std::pair<uint64_t, absl::Status>> stalled;
  for (const auto& [id, channel] : channels_) {
    if (absl::Status status = channel->CheckTimeouts(now); !status.ok()) {
      stalled.emplace_back(id, std::move(status));
    }
  }
  for (const auto& [id, reason] : stalled) CloseChannel(id, reason);
  if (accept_again_.has_value() && now >= *accept_again_) {
    accept_again_.reset();
    if (!Watch(listener_.get(), EPOLLIN, EventData(0, kKindListener)).ok()) {
      accept_again_ = now + kAcceptPause;
    }
  }
}

void Engine::ShutDownAll() {
  const absl::Status reason = base::Cancelled("the channel engine was shut down");
  pending_.clear();
  while (!expected_.empty()) {
    const Expected expected = std::move(expected_.front());
    expected_.pop_front();
    expected.on_channel(reason);
  }
  while (!channels_.empty()) CloseChannel(channels_.begin()->first, reason);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpEngine>> TcpEngine::Create(Options options,
                                                             const base::Clock* clock) {
  Fd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return base::Unavailable("epoll_create1: {}", ErrnoText(errno));
  ASSIGN_OR_RETURN(std::shared_ptr<Waker> waker, Waker::Create());
  auto engine =
      std::make_unique<Engine>(std::move(options), clock, std::move(waker), std::move(epoll));
  RETURN_IF_ERROR(engine->Start());
  return engine;
}

}  // namespace smartgen::channel
