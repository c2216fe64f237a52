#include "common/trace/trace.h"

#include <utility>

namespace smartgen::trace {
namespace {

constexpr size_t kReserve = 16;  // one of so many events is kept free of bulk kinds
constexpr int kMaxRequests = 1024;
constexpr int64_t kMaxEvents = 1 << 20;
// What all traces of a daemon may hold: 4 Mi events of 64 bytes.
constexpr int64_t kMaxEventsTogether = 4 << 20;

}  // namespace

RequestTrace::RequestTrace(std::string id, const base::Clock* clock, size_t max_events)
    : id_(std::move(id)), clock_(clock), begun_(clock->Now()), max_events_(max_events) {}

void RequestTrace::AddLocked(const Event& event) {
  if (abandoned_) return;
  const size_t reserve = Describe(event.kind).bulk ? max_events_ / kReserve : 0;
  if (events_.size() + reserve >= max_events_) {
    ++dropped_[event.kind];
  } else {
    events_.push_back(event);
  }
}

void RequestTrace::Add(Kind kind, base::TimePoint begin, base::TimePoint end, const Args& args) {
  base::MutexLock lock(mutex_);
  AddLocked({.begin = begin, .duration = end - begin, .args = args, .kind = kind});
}

void RequestTrace::Mark(Kind kind, const Args& args) {
  const base::TimePoint now = Now();
  Add(kind, now, now, args);
}

void RequestTrace::Enter(Kind state) {
  const base::TimePoint now = Now();
  base::MutexLock lock(mutex_);
  if (finished_) return;
  if (state_) {
    state_->duration = now - state_->begin;
    AddLocked(*state_);
  }
  state_ = Event{.begin = now, .kind = state};
}

void RequestTrace::Finish(Kind kind) {
  const base::TimePoint now = Now();
  base::MutexLock lock(mutex_);
  if (std::exchange(finished_, true)) return;
  if (state_) {
    state_->duration = now - state_->begin;
    AddLocked(*state_);
    state_.reset();
  }
  AddLocked({.begin = begun_, .duration = now - begun_, .kind = kind});
}

void RequestTrace::Note(std::string_view key, std::string value) {
  base::MutexLock lock(mutex_);
  if (const auto it = notes_.find(key); it != notes_.end()) {
    it->second = std::move(value);
  } else if (notes_.size() < kMaxNotes) {
    notes_.emplace(key, std::move(value));
  }
}

Snapshot RequestTrace::Read() const {
  const base::TimePoint now = Now();
  Snapshot out{.id = id_, .begun = begun_};
  base::MutexLock lock(mutex_);
  out.finished = finished_;
  out.events = events_;
  if (state_) {
    out.events.push_back(*state_);
    out.events.back().duration = now - state_->begin;
  }
  out.dropped = dropped_;
  out.notes.insert(notes_.begin(), notes_.end());
  return out;
}

void RequestTrace::Abandon() {
  std::vector<Event> events;
  base::MutexLock lock(mutex_);
  abandoned_ = true;
  events_.swap(events);
  notes_.clear();
}

absl::Status TraceStore::Options::Check() const {
  if (max_requests < 0 || max_requests > kMaxRequests) {
    return base::InvalidArgument("trace.requests: want 0 to {}, got {}", kMaxRequests,
                                 max_requests);
  }
  if (max_events < 1 || max_events > kMaxEvents) {
    return base::InvalidArgument("trace.events: want 1 to {}, got {}", kMaxEvents, max_events);
  }
  if (max_requests * max_events > kMaxEventsTogether) {
    return base::InvalidArgument(
        "trace.requests times trace.events: want at most {} events, got {} times {}",
        kMaxEventsTogether, max_requests, max_events);
  }
  if (keep < std::chrono::milliseconds(1)) {
    return base::InvalidArgument("trace.keep: want at least 1ms, got {}ns", keep.count());
  }
  return absl::OkStatus();
}

void TraceStore::DropOldestLocked() {
  traces_.front()->Abandon();
  traces_.pop_front();
}

void TraceStore::ExpireLocked() {
  const base::TimePoint now = clock_->Now();
  while (!traces_.empty() && now - traces_.front()->begun() > options_.keep) DropOldestLocked();
}

void TraceStore::Expire() {
  base::MutexLock lock(mutex_);
  ExpireLocked();
}

TracePtr TraceStore::Begin(std::string_view id) const {
  if (options_.max_requests == 0 || id.empty() || id.size() > kMaxIdBytes) return nullptr;
  return std::make_shared<RequestTrace>(std::string(id), clock_,
                                        static_cast<size_t>(options_.max_events));
}

void TraceStore::Keep(TracePtr trace) {
  if (trace == nullptr) return;
  base::MutexLock lock(mutex_);
  ExpireLocked();
  while (static_cast<int>(traces_.size()) >= options_.max_requests) DropOldestLocked();
  traces_.push_back(std::move(trace));
}

absl::StatusOr<std::vector<TracePtr>> TraceStore::Find(std::string_view id) {
  std::vector<TracePtr> found;
  {
    base::MutexLock lock(mutex_);
    ExpireLocked();
    for (const TracePtr& trace : traces_) {
      if (trace->id() == id) found.push_back(trace);
    }
  }
  if (!found.empty()) return found;
  if (options_.max_requests == 0) {
    return base::NotFound("request {}: this daemon keeps no traces (trace.requests is 0)", id);
  }
  return base::NotFound(
      "request {}: no trace is kept here. A request is traced if its body has \"smartgen\": "
      "{{\"trace\": true}}; the latest {} are kept, for {:g} s",
      id, options_.max_requests, base::ToSeconds(options_.keep));
}

}  // namespace smartgen::trace
