// What `smartgen calibrate` measured on a machine with a model, as a file that the daemons load.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/transfer/cost_model.h"

namespace smartgen::transfer {

// The file's version. A reader refuses any other.
inline constexpr uint32_t kCalibrationVersion = 1;

struct Calibration {
  // What it holds for. Speed hangs on all of these, so a daemon refuses one that differs in any.
  struct Subject {
    std::string model_fingerprint;
    std::string compute;  // "f32", "bf16"
    std::string cpu;      // base::CpuName, or the GPU's name
    int threads = 0;      // compute threads
  };
  Subject subject;
  std::string model_name;
  int64_t max_prefill_tokens = 0;  // longer prompts were run in chunks of this
  int layers = 0;
  int64_t kv_bytes_per_token = 0;
  std::string command;       // that made it
  int64_t unix_seconds = 0;  // when
  CostPoints points;

  // InvalidArgument names what is not within limits: texts up to 4096 bytes; up to 4096 points a
  // kind; numbers of tokens up to 2^24, seconds and rates positive and finite.
  absl::Status Check() const;
  // FailedPrecondition naming what differs, with both values and how to make another.
  absl::Status CheckFor(const Subject& ours) const;

  // NotFound, or InvalidArgument saying what is wrong (no calibration, version, truncated, limits).
  static absl::StatusOr<Calibration> Load(const std::string& path);
  // Written beside and renamed, so that a reader never sees half a file. Checks first.
  absl::Status Save(const std::string& path) const;
};

// The model of a daemon's `calibration` file; null for an empty path. Errors as Load, CheckFor and
// CostModel::Create, with the path.
absl::StatusOr<std::unique_ptr<CostModel>> LoadCostModel(const std::string& path,
                                                         const Calibration::Subject& ours);

}  // namespace smartgen::transfer
