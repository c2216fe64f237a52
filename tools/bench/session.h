// A benchmark's hold on running daemons: requests one after the other, and what each moved.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/kv/layout.h"
#include "tools/bench/counters.h"
#include "tools/bench/generation.h"
#include "tools/bench/rig.h"

namespace smartgen::tools::bench {

struct ModelFacts {
  std::string name;
  std::string fingerprint;
  std::string version;  // of the daemons
  std::string compute;
  int64_t context_length = 0;
  kv::KvLayout layout;
};

struct Outcome {
  std::vector<Generation> generations;  // as the specs
  Counters decode;                      // growth while they ran and until all was quiet again
  Counters prefill;                     // all prefill instances together
};

// One thread.
class Session {
 public:
  // Waits until the decode instance serves and is paired with every prefill instance.
  static absl::StatusOr<std::unique_ptr<Session>> Open(const Rig& rig, StopSource* stop,
                                                       base::Duration start_timeout);
  ~Session();

  const ModelFacts& model() const { return model_; }
  // Runs `specs` at once, when nothing of an earlier request is left on either side. An error is
  // one of the set-up; a failed generation has its own status.
  absl::StatusOr<Outcome> Run(const std::vector<GenerationSpec>& specs, base::Duration timeout);
  // Waits until no request and no lease is left. DeadlineExceeded says what is.
  absl::Status WaitQuiet(base::Duration timeout) const;

 private:
  Session(const Rig& rig, StopSource* stop) : rig_(rig), stop_(stop) {}
  absl::Status Connect(base::Deadline deadline);
  absl::Status ReadModel();
  absl::StatusOr<std::string> Unquiet() const;  // what is left; empty: nothing
  absl::StatusOr<Counters> DecodeCounters() const;
  absl::StatusOr<Counters> PrefillCounters() const;

  const Rig rig_;
  StopSource* const stop_;
  std::shared_ptr<DecodeClient> decode_;
  std::vector<std::shared_ptr<grpc::Channel>> prefills_;
  ModelFacts model_;
};

}  // namespace smartgen::tools::bench
