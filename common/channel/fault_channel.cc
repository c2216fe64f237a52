#include "common/channel/fault_channel.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "common/base/mutex.h"

namespace smartgen::channel {
namespace {

// A message that is held back goes out after this even if none follows it.
constexpr base::Duration kMaxHold = std::chrono::milliseconds(50);
// The channel below has a full queue: try again after this.
constexpr base::Duration kRetry = std::chrono::milliseconds(1);
constexpr base::Duration kIdleWait = std::chrono::seconds(1);
constexpr size_t kMaxQueued = 1 << 16;

struct Item {
  OutMessage message;
  uint64_t bytes = 0;
  base::TimePoint due;
  bool dropped = false;  // only on_done is left to call
};

uint64_t PayloadBytes(const OutMessage& message) {
  uint64_t bytes = 0;
  for (const auto& segment : message.segments) bytes += segment.size();
  return bytes;
}

// Replaces the segments by a copy of their bytes, which lives as long as the message.
std::vector<std::byte>& CopyPayload(OutMessage& message) {
  auto copy = std::make_shared<std::vector<std::byte>>();
  copy->reserve(PayloadBytes(message));
  for (const auto& segment : message.segments) {
    copy->insert(copy->end(), segment.begin(), segment.end());
  }
  message.segments = {std::span<const std::byte>(*copy)};
  auto both = std::make_shared<
      std::pair<std::shared_ptr<const void>, std::shared_ptr<std::vector<std::byte>>>>(
      std::move(message.owner), copy);
  message.owner = std::move(both);
  return *copy;
}

// What the helper thread works on; it lives until both channel and thread are done with it.
class Link {
 public:
  Link(std::shared_ptr<Channel> inner, FaultOptions options)
      : inner_(std::move(inner)), options_(options), random_(options.seed) {}

  absl::Status Send(OutMessage message);
  int64_t CancelTag(uint64_t tag);
  ChannelStats Stats() const;
  void Close(const absl::Status& reason);
  FaultCounts Counts() const;
  Channel& inner() { return *inner_; }
  void Stop();
  void Loop();

 private:
  bool Draw(double probability) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return probability > 0 && std::uniform_real_distribution<>(0, 1)(random_) < probability;
  }
  void Enqueue(int lane, Item item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Inject(OutMessage message, base::TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReleaseHeld(base::TimePoint now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The next item that may go now, from the highest lane; else sets how long to wait.
  std::optional<Item> Next(base::TimePoint now, base::Duration* wait)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns 1 if the caller of Send knows of the message.
  int64_t Cancel(Item item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeAll(std::vector<Item>* items) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forward(Item item);
  void GiveBack(Item item);
  static void Done(Item& item, const absl::Status& status) {
    if (item.message.on_done) item.message.on_done(status);
  }

  const std::shared_ptr<Channel> inner_;
  const FaultOptions options_;
  const base::Clock* const clock_ = base::Clock::Real();

  mutable base::Mutex mutex_;
  base::CondVar wake_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  std::array<std::deque<Item>, kNumLanes> queues_ ABSL_GUARDED_BY(mutex_);
  std::array<std::optional<Item>, kNumLanes> held_ ABSL_GUARDED_BY(mutex_);
  std::array<base::TimePoint, kNumLanes> last_due_ ABSL_GUARDED_BY(mutex_);
  std::vector<Item> cancelled_ ABSL_GUARDED_BY(mutex_);
  base::TimePoint link_free_ ABSL_GUARDED_BY(mutex_);
  FaultCounts counts_ ABSL_GUARDED_BY(mutex_);
  uint64_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t sent_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);  // the reason
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::Status Link::Send(OutMessage message) {
  if (message.head.empty() || message.head.size() > kMaxHeadBytes ||
      static_cast<int>(message.lane) >= kNumLanes || PayloadBytes(message) > kMaxPayloadBytes) {
    return base::InvalidArgument("head of {} bytes, payload of {} bytes, lane {}: beyond limits",
                                 message.head.size(), PayloadBytes(message),
                                 static_cast<int>(message.lane));
  }
  base::MutexLock lock(mutex_);
  if (!closed_.ok()) {
    return base::Unavailable("the channel is closed: {}", base::MessageOf(closed_));
  }
  if (queues_[static_cast<int>(message.lane)].size() >= kMaxQueued) {
    return base::ResourceExhausted("lane {}: {} messages are queued", LaneName(message.lane),
                                   kMaxQueued);
  }
  Inject(std::move(message), clock_->Now());
  wake_.NotifyOne();
  return absl::OkStatus();
}

void Link::Inject(OutMessage message, base::TimePoint now) {
  const int lane = static_cast<int>(message.lane);
  Item item{.message = std::move(message), .due = now};
  item.bytes = PayloadBytes(item.message);
  if (Draw(options_.drop)) {
    ++counts_.dropped;
    item.dropped = true;
    Enqueue(lane, std::move(item));
    return;
  }
  if (item.bytes > 0 && Draw(options_.corrupt)) {
    ++counts_.corrupted;
    std::vector<std::byte>& bytes = CopyPayload(item.message);
    bytes[random_() % bytes.size()] ^= static_cast<std::byte>(1 + random_() % 255);
  }
  if (options_.delay_max.count() > 0) {
    ++counts_.delayed;
    std::uniform_int_distribution<int64_t> delay(options_.delay_min.count(),
                                                 options_.delay_max.count());
    item.due = now + base::Duration(delay(random_));
  }
  std::optional<Item> twin;
  if (Draw(options_.duplicate)) {
    ++counts_.duplicated;
    CopyPayload(item.message);  // the twin may go out after on_done of the first
    twin = item;
    twin->message.on_done = nullptr;
  }
  if (!held_[lane].has_value() && Draw(options_.reorder)) {
    ++counts_.reordered;
    held_[lane] = std::move(item);
    held_[lane]->due = std::max(held_[lane]->due, now + kMaxHold);
    queued_bytes_ += held_[lane]->bytes;
  } else {
    Enqueue(lane, std::move(item));
    if (held_[lane].has_value()) {
      Item held = *std::exchange(held_[lane], std::nullopt);
      queued_bytes_ -= held.bytes;
      held.due = now;
      Enqueue(lane, std::move(held));
    }
  }
  if (twin.has_value()) Enqueue(lane, *std::move(twin));
}

void Link::Enqueue(int lane, Item item) {
  // A delay does not reorder: a lane stays in order but for what `reorder` does.
  item.due = std::max(item.due, last_due_[lane]);
  last_due_[lane] = item.due;
  queued_bytes_ += item.bytes;
  queues_[lane].push_back(std::move(item));
}

void Link::ReleaseHeld(base::TimePoint now) {
  for (int lane = 0; lane < kNumLanes; ++lane) {
    if (!held_[lane].has_value() || held_[lane]->due > now) continue;
    Item item = *std::exchange(held_[lane], std::nullopt);
    queued_bytes_ -= item.bytes;
    Enqueue(lane, std::move(item));
  }
}

std::optional<Item> Link::Next(base::TimePoint now, base::Duration* wait) {
  ReleaseHeld(now);
  for (const auto& held : held_) {
    if (held.has_value()) *wait = std::min(*wait, held->due - now);
  }
  if (options_.bandwidth > 0 && link_free_ > now) {
    *wait = std::min(*wait, link_free_ - now);
    return std::nullopt;
  }
  for (auto& queue : queues_) {
    if (queue.empty()) continue;
    if (queue.front().due > now) {
      *wait = std::min(*wait, queue.front().due - now);
      continue;
    }
    Item item = std::move(queue.front());
    queue.pop_front();
    queued_bytes_ -= item.bytes;
    if (options_.bandwidth > 0 && !item.dropped) {
      link_free_ = std::max(link_free_, now) +
                   base::FromSeconds(static_cast<double>(item.bytes) / options_.bandwidth);
    }
    return item;
  }
  return std::nullopt;
}

void Link::TakeAll(std::vector<Item>* items) {
  for (int lane = 0; lane < kNumLanes; ++lane) {
    for (Item& item : queues_[lane]) items->push_back(std::move(item));
    queues_[lane].clear();
    if (held_[lane].has_value()) items->push_back(*std::exchange(held_[lane], std::nullopt));
  }
  queued_bytes_ = 0;
}

void Link::Loop() {
  for (;;) {
    std::vector<Item> ended;      // the channel is closed
    std::vector<Item> cancelled;  // by CancelTag
    std::optional<Item> next;
    absl::Status reason;
    bool stop = false;
    {
      base::MutexLock lock(mutex_);
      base::Duration wait = kIdleWait;
      cancelled.swap(cancelled_);
      reason = closed_;
      stop = stop_;
      if (!closed_.ok()) {
        TakeAll(&ended);
      } else {
        next = Next(clock_->Now(), &wait);
      }
      if (!stop && !next.has_value() && cancelled.empty() && ended.empty()) {
        wake_.WaitFor(mutex_, wait);
        continue;
      }
    }
    for (Item& item : cancelled) Done(item, base::Cancelled("dropped before it was sent"));
    for (Item& item : ended) Done(item, reason);
    if (next.has_value()) Forward(*std::move(next));
    if (stop && cancelled.empty() && ended.empty()) return;
  }
}

void Link::Forward(Item item) {
  if (item.dropped) {
    Done(item, absl::OkStatus());
    return;
  }
  {
    base::MutexLock lock(mutex_);
    if (options_.close_after_messages >= 0 && sent_ >= options_.close_after_messages) {
      if (closed_.ok()) {
        closed_ =
            base::Unavailable("fault: closed after {} messages", options_.close_after_messages);
      }
      item.dropped = true;
    } else {
      ++sent_;
    }
  }
  if (item.dropped) {
    absl::Status reason;
    {
      base::MutexLock lock(mutex_);
      reason = closed_;
    }
    inner_->Close(reason);
    Done(item, reason);
    return;
  }
  OutMessage message = item.message;
  const absl::Status status = inner_->Send(std::move(message));
  if (status.ok()) return;
  if (absl::IsResourceExhausted(status)) {
    GiveBack(std::move(item));
    return;
  }
  if (absl::IsUnavailable(status)) {
    base::MutexLock lock(mutex_);
    if (closed_.ok()) closed_ = status;
  }
  Done(item, status);
}

void Link::GiveBack(Item item) {
  base::MutexLock lock(mutex_);
  --sent_;
  item.due = clock_->Now() + kRetry;
  queued_bytes_ += item.bytes;
  queues_[static_cast<int>(item.message.lane)].push_front(std::move(item));
}

int64_t Link::Cancel(Item item) {
  queued_bytes_ -= item.bytes;
  // Those without on_done are twins, which nobody knows of.
  const int64_t known = item.message.on_done ? 1 : 0;
  cancelled_.push_back(std::move(item));
  return known;
}

int64_t Link::CancelTag(uint64_t tag) {
  int64_t dropped = 0;
  {
    base::MutexLock lock(mutex_);
    for (auto& queue : queues_) {
      std::deque<Item> kept;
      for (Item& item : queue) {
        if (item.message.tag == tag && !item.dropped) {
          dropped += Cancel(std::move(item));
        } else {
          kept.push_back(std::move(item));
        }
      }
      queue.swap(kept);
    }
    for (auto& held : held_) {
      if (!held.has_value() || held->message.tag != tag) continue;
      dropped += Cancel(*std::exchange(held, std::nullopt));
    }
    wake_.NotifyOne();
  }
  return dropped + inner_->CancelTag(tag);
}

ChannelStats Link::Stats() const {
  ChannelStats stats = inner_->stats();
  base::MutexLock lock(mutex_);
  stats.queued_bytes += queued_bytes_;
  return stats;
}

void Link::Close(const absl::Status& reason) {
  {
    base::MutexLock lock(mutex_);
    if (closed_.ok()) closed_ = reason.ok() ? base::Unavailable("closed") : reason;
    wake_.NotifyOne();
  }
  inner_->Close(reason);
}

FaultCounts Link::Counts() const {
  base::MutexLock lock(mutex_);
  return counts_;
}

void Link::Stop() {
  base::MutexLock lock(mutex_);
  if (closed_.ok()) closed_ = base::Unavailable("the fault channel was destroyed");
  stop_ = true;
  wake_.NotifyOne();
}

class FaultChannelImpl final : public FaultChannel {
 public:
  FaultChannelImpl(std::shared_ptr<Channel> inner, FaultOptions options)
      : link_(std::make_shared<Link>(std::move(inner), options)),
        thread_([link = link_] { link->Loop(); }) {}

  ~FaultChannelImpl() override {
    link_->Stop();
    // The last reference may go in an on_done, on the thread itself.
    if (thread_.get_id() == std::this_thread::get_id()) {
      thread_.detach();
    } else {
      thread_.join();
    }
  }

  absl::Status Send(OutMessage message) override { return link_->Send(std::move(message)); }
  int64_t CancelTag(uint64_t tag) override { return link_->CancelTag(tag); }
  ChannelStats stats() const override { return link_->Stats(); }
  void LimitInFlight(Lane lane, uint64_t bytes) override {
    link_->inner().LimitInFlight(lane, bytes);
  }
  LinkInfo link_info() const override { return link_->inner().link_info(); }
  void Close(const absl::Status& reason) override { link_->Close(reason); }
  std::string_view transport() const override { return link_->inner().transport(); }
  std::string peer() const override { return link_->inner().peer(); }
  FaultCounts counts() const override { return link_->Counts(); }

 private:
  const std::shared_ptr<Link> link_;
  std::thread thread_;
};

}  // namespace

std::shared_ptr<FaultChannel> FaultChannel::Wrap(std::shared_ptr<Channel> inner,
                                                 FaultOptions options) {
  return std::make_shared<FaultChannelImpl>(std::move(inner), options);
}

}  // namespace smartgen::channel
