// I[layer][block]: how often tokens at a relative position are selected, measured offline. Decides
// what is worth pushing first.
//
// Immutable after construction; thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/transfer/blocks.h"

namespace smartgen::transfer {

// The first layers attend to everything: their importance is infinite, they always go.
inline constexpr int kDenseLayers = 2;

// The file's version. A reader refuses any other.
inline constexpr uint32_t kProfileVersion = 1;

class Profile {
 public:
  using Row = std::array<float, kBlocks>;

  // Where a profile comes from; a daemon refuses one whose model or layer count is not its own.
  struct Origin {
    std::string model_fingerprint;
    std::string model_name;
    std::string selector;         // "quest", "hata", "infinigen", "dense" (exact attention scores)
    double selection_budget = 0;  // share of the context
    std::vector<int64_t> prompt_lengths;
    std::vector<std::string> texts;  // names of the calibration texts
    std::string command;             // that made it
  };

  // InvalidArgument for rows that are not finite, negative, or fewer than two.
  static absl::StatusOr<Profile> Create(std::vector<Row> rows, Origin origin);
  // A documented guess for models without a profile: attention sinks at the start, recency at the
  // end, a flat middle; first layers dense. IsPrior() tells.
  static Profile Prior(int layers);

  // NotFound, or InvalidArgument saying what is wrong (not a profile, version, truncated, sizes).
  static absl::StatusOr<Profile> Load(const std::string& path);
  // Of a file's bytes; `name` stands in the messages.
  static absl::StatusOr<Profile> Parse(std::string_view bytes, const std::string& name);
  // Written beside and renamed, so that a reader never sees half a file.
  absl::Status Save(const std::string& path) const;
  // FailedPrecondition naming what differs.
  absl::Status CheckFor(const std::string& model_fingerprint, int layers) const;

  int layers() const { return static_cast<int>(rows_.size()); }
  // +infinity for the first kDenseLayers layers.
  float Importance(int layer, int block) const;
  const Origin& origin() const { return origin_; }
  bool IsPrior() const { return prior_; }

 private:
  std::vector<Row> rows_;
  Origin origin_;
  bool prior_ = false;
};

}  // namespace smartgen::transfer
