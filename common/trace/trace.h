// Records what happens to a request that asks for it, in one daemon: bounded, and kept for a while.
//
// A request that is not traced has a null RequestTrace: every hook is a branch on that pointer.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/trace/kinds.h"

namespace smartgen::trace {

using Args = std::array<int64_t, kMaxArgs>;  // named by the kind's catalogue entry

struct Event {
  base::TimePoint begin;  // of the daemon's clock
  base::Duration duration{0};
  Args args{};
  Kind kind = Kind::kRequest;
};

// What a trace held at one moment.
struct Snapshot {
  std::string id;
  base::TimePoint begun;
  bool finished = false;
  std::vector<Event> events;  // in the order of their ends
  std::map<Kind, uint64_t> dropped;
  std::map<std::string, std::string> notes;
};

// One request's events. Thread-safe; no call blocks for longer than a push into a vector takes.
class RequestTrace {
 public:
  // At most `max_events`; of these a sixteenth is kept free of bulk kinds, so that the end of a
  // long request is not lost. What is beyond is dropped and counted by kind.
  RequestTrace(std::string id, const base::Clock* clock, size_t max_events);

  const std::string& id() const { return id_; }
  base::TimePoint begun() const { return begun_; }
  base::TimePoint Now() const { return clock_->Now(); }

  void Add(Kind kind, base::TimePoint begin, base::TimePoint end, const Args& args = {});
  // Ends now.
  void Add(Kind kind, base::TimePoint begin, const Args& args = {}) {
    Add(kind, begin, Now(), args);
  }
  // A moment.
  void Mark(Kind kind, const Args& args = {});
  // The state that the request is in from now on; the one before ends. Nothing after Finish.
  void Enter(Kind state);
  // The last state ends, and the whole, of `kind`, is added: from the trace's begin until now.
  // Idempotent; what comes later is still taken.
  void Finish(Kind kind);
  // Said of the request as a whole; a note of the same key is replaced. At most kMaxNotes.
  void Note(std::string_view key, std::string value);

  // The state under way as if it ended now.
  Snapshot Read() const;

  // Nobody can ask for it any more: lets go of what was recorded and takes nothing from now on,
  // however long the request still runs.
  void Abandon();

 private:
  static constexpr size_t kMaxNotes = 64;
  void AddLocked(const Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string id_;
  const base::Clock* const clock_;
  const base::TimePoint begun_;
  const size_t max_events_;
  mutable base::Mutex mutex_;
  std::vector<Event> events_ ABSL_GUARDED_BY(mutex_);
  std::map<Kind, uint64_t> dropped_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string, std::less<>> notes_ ABSL_GUARDED_BY(mutex_);
  std::optional<Event> state_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
};

using TracePtr = std::shared_ptr<RequestTrace>;  // null: not traced

inline void Mark(const TracePtr& trace, Kind kind, const Args& args = {}) {
  if (trace != nullptr) trace->Mark(kind, args);
}

// The traces of a daemon's latest requests. Thread-safe.
class TraceStore {
 public:
  struct Options {
    int max_requests = 16;                           // kept; 0: nothing is traced
    int64_t max_events = 1 << 16;                    // of a request, 64 bytes each
    base::Duration keep = std::chrono::minutes(10);  // from a trace's begin on
    // InvalidArgument names the field, "trace.requests" and so on.
    absl::Status Check() const;
  };
  static constexpr size_t kMaxIdBytes = 256;

  TraceStore(Options options, const base::Clock* clock) : options_(options), clock_(clock) {}

  // A new trace, which nobody finds yet: its request may be refused. Null if nothing is traced, or
  // the id is empty or longer than kMaxIdBytes. Several may have the same id: choices of one
  // request, new attempts.
  TracePtr Begin(std::string_view id) const;
  // Its request was taken: the oldest gives way to it. Null: nothing.
  void Keep(TracePtr trace);
  // In the order in which they were kept. NotFound says how to have one recorded.
  absl::StatusOr<std::vector<TracePtr>> Find(std::string_view id);
  // Lets go of what is older than `keep`.
  void Expire();

 private:
  void DropOldestLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ExpireLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const Options options_;
  const base::Clock* const clock_;
  base::Mutex mutex_;
  std::deque<TracePtr> traces_ ABSL_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace smartgen::trace
