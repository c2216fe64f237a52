// KV of one sequence that stands on the prefill side, as the executor asks for it. Used by the
// engine's thread alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "common/base/clock.h"
#include "common/kv/remote_kv.h"
#include "common/kv/sequence.h"
#include "common/trace/trace.h"
#include "decode_server/remote_prefill.h"

namespace smartgen::decode_server {

class RemoteReader final : public kv::RemoteKv {
 public:
  // Of a Fetch message; prefill sides take more.
  static constexpr size_t kRangesPerMessage = 1 << 16;

  struct Options {
    base::Duration stall = std::chrono::seconds(1);  // without an answer: asked again
    int max_retries = 3;                             // asked in vain so often: an error
    bool parallel = true;                            // false: one head's entries after the other's
    trace::TracePtr trace;                           // null: not traced
    // Bytes that all readers have asked of the same instance and that have not come: their answers
    // stand in one queue. Null: this one is alone.
    std::shared_ptr<int64_t> asked_bytes;
  };
  RemoteReader(Options options, std::shared_ptr<PrefillAttempt> attempt,
               std::shared_ptr<kv::KvSequence> sequence, const base::Clock* clock);
  ~RemoteReader();
  RemoteReader(const RemoteReader&) = delete;
  RemoteReader& operator=(const RemoteReader&) = delete;

  // What was asked for in an earlier step and not needed after all is forgotten.
  void BeginStep(int64_t position);
  void OnReply(uint64_t step, int layer, std::span<const std::byte> bytes);
  // Answers to shipped queries wait for their turn.
  void OnDeferred();
  // Why an answer never came; OK: none was missed.
  const absl::Status& failure() const { return failure_; }
  int64_t retries() const { return retries_; }

  absl::Status Fetch(int layer, std::span<const kv::HeadRange> ranges) override;
  absl::StatusOr<bool> Fetched(int layer) override;
  absl::Status Attend(int layer, int64_t begin, int64_t end,
                      std::span<const float> queries) override;
  absl::StatusOr<bool> Attended(int layer, std::span<float> out, std::span<float> lse) override;

 private:
  struct Wait {
    std::vector<kv::HeadRange> ranges;                // that may not be here yet
    std::map<int, std::vector<kv::HeadRange>> known;  // by head, ascending: wanted in this step
    int64_t asked_bytes = 0;     // of what was asked for and may not be here yet
    size_t asked = 0;            // so many of them were asked for
    base::TimePoint asked_at{};  // or when bytes last came
    uint64_t bytes = 0;          // of the transfer, then
    int retries = 0;
    base::TimePoint first_asked_at{};  // for the trace, as what follows
    int64_t asked_ranges = 0;
    int64_t asked_entries = 0;
  };
  struct Shipped {
    int64_t begin = 0;
    int64_t end = 0;
    std::vector<float> queries;
    std::vector<float> answer;  // empty: not here yet
    base::TimePoint asked_at{};
    int retries = 0;
    base::TimePoint first_asked_at{};
  };
  bool Here(int layer, const kv::HeadRange& range) const;
  // Asks for the ranges that have not been asked for, all or the next head's.
  void AskNext(int layer, Wait& wait);
  // In messages of a size that the prefill side takes.
  void Ask(int layer, std::span<const kv::HeadRange> ranges, bool again);
  int64_t Bytes(int layer, std::span<const kv::HeadRange> ranges) const;
  // What was asked for and may not be here yet has become so many bytes.
  void Count(Wait& wait, int64_t bytes);
  void Forget();
  // The time that what was asked for and is not here takes on the link; 0 where its rate is
  // unknown.
  base::Duration Way(double bytes_per_second) const;
  // True if it is time to ask again: nothing came for `way` and the stall. An error once that was
  // done too often.
  absl::StatusOr<bool> AskAgain(int layer, base::TimePoint asked_at, base::Duration way,
                                int& retries);

  const Options options_;
  const std::shared_ptr<PrefillAttempt> attempt_;
  const std::shared_ptr<kv::KvSequence> sequence_;
  const base::Clock* const clock_;
  const std::shared_ptr<int64_t> asked_bytes_;
  int64_t position_ = 0;
  int64_t retries_ = 0;
  absl::Status failure_;
  std::map<int, Wait> waits_;       // by layer
  std::map<int, Shipped> shipped_;  // by layer
};

}  // namespace smartgen::decode_server
