#include "common/transfer/profile.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>

#include "common/transfer/profile.pb.h"

namespace smartgen::transfer {
namespace {

constexpr uint32_t kMagic = 0x46475053;
// A row is 4 KiB and model files have at most 1024 layers: anything larger is not a profile.
constexpr int64_t kMaxFileBytes = 16 << 20;

}  // namespace

absl::StatusOr<Profile> Profile::Create(std::vector<Row> rows, Origin origin) {
  if (rows.size() < kDenseLayers) {
    return base::InvalidArgument("profile: want at least {} layers, got {}", kDenseLayers,
                                 rows.size());
  }
  for (size_t layer = 0; layer < rows.size(); ++layer) {
    for (int block = 0; block < kBlocks; ++block) {
      const float value = rows[layer][block];
      if (!std::isfinite(value) || value < 0) {
        return base::InvalidArgument("profile: layer {} block {}: want a frequency >= 0, got {}",
                                     layer, block, value);
      }
    }
  }
  Profile profile;
  profile.rows_ = std::move(rows);
  profile.origin_ = std::move(origin);
  return profile;
}

Profile Profile::Prior(int layers) {
  Row row;
  for (int block = 0; block < kBlocks; ++block) {
    const double at = (block + 0.5) / kBlocks;
    // Sinks: the first half per cent. Recency: rises over the last quarter. The middle is flat, so
    // ties are broken by layer and position.
    const double sink = at < 0.005 ? 1.0 : 0.0;
    const double recency = at > 0.75 ? (at - 0.75) / 0.25 * 0.8 : 0.0;
    row[block] = static_cast<float>(std::max({0.1, sink, recency}));
  }
  Profile profile;
  profile.rows_.assign(static_cast<size_t>(std::max(layers, kDenseLayers)), row);
  profile.origin_.selector = "prior";
  profile.prior_ = true;
  return profile;
}

float Profile::Importance(int layer, int block) const {
  return layer < kDenseLayers ? std::numeric_limits<float>::infinity() : rows_[layer][block];
}

absl::Status Profile::CheckFor(const std::string& model_fingerprint, int layers) const {
  if (prior_) return absl::OkStatus();
  if (origin_.model_fingerprint != model_fingerprint) {
    return base::FailedPrecondition(
        "profile: made for model {} ({}), this model is {}; make one with `smartgen profile`",
        origin_.model_fingerprint, origin_.model_name, model_fingerprint);
  }
  if (this->layers() != layers) {
    return base::FailedPrecondition("profile: has {} layers, the model has {}", this->layers(),
                                    layers);
  }
  return absl::OkStatus();
}

absl::StatusOr<Profile> Profile::Load(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) return base::NotFound("profile {}: {}", path, error.message());
  if (static_cast<int64_t>(size) > kMaxFileBytes) {
    return base::InvalidArgument("profile {}: want at most {} bytes, the file has {}", path,
                                 kMaxFileBytes, size);
  }
  std::string bytes(size, '\0');
  std::ifstream in(path, std::ios::binary);
  if (!in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
    return base::DataLoss("profile {}: cannot be read", path);
  }
  return Parse(bytes, path);
}

absl::StatusOr<Profile> Profile::Parse(std::string_view bytes, const std::string& name) {
  if (static_cast<int64_t>(bytes.size()) > kMaxFileBytes) {
    return base::InvalidArgument("profile {}: want at most {} bytes, got {}", name, kMaxFileBytes,
                                 bytes.size());
  }
  profile::ProfileFile file;
  if (!file.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) ||
      file.magic() != kMagic) {
    return base::InvalidArgument("profile {}: not a SmartGen profile, or damaged", name);
  }
  if (file.version() != kProfileVersion) {
    return base::InvalidArgument("profile {}: want version {}, the file has {}", name,
                                 kProfileVersion, file.version());
  }
  if (file.blocks() != kBlocks) {
    return base::InvalidArgument("profile {}: want {} blocks a layer, the file has {}", name,
                                 kBlocks, file.blocks());
  }
  std::vector<Row> rows(file.rows_size());
  for (int layer = 0; layer < file.rows_size(); ++layer) {
    const auto& importance = file.rows(layer).importance();
    if (importance.size() != kBlocks) {
      return base::InvalidArgument("profile {}: layer {}: want {} values, the file has {}", name,
                                   layer, kBlocks, importance.size());
    }
    std::copy(importance.begin(), importance.end(), rows[layer].begin());
  }
  Origin origin;
  origin.model_fingerprint = file.model_fingerprint();
  origin.model_name = file.model_name();
  origin.selector = file.selector();
  origin.selection_budget = file.selection_budget();
  origin.prompt_lengths.assign(file.prompt_lengths().begin(), file.prompt_lengths().end());
  origin.texts.assign(file.texts().begin(), file.texts().end());
  origin.command = file.command();
  auto profile = Create(std::move(rows), std::move(origin));
  if (!profile.ok()) return base::Annotate(profile.status(), name);
  return profile;
}

absl::Status Profile::Save(const std::string& path) const {
  profile::ProfileFile file;
  file.set_magic(kMagic);
  file.set_version(kProfileVersion);
  file.set_model_fingerprint(origin_.model_fingerprint);
  file.set_model_name(origin_.model_name);
  file.set_selector(origin_.selector);
  file.set_selection_budget(origin_.selection_budget);
  for (int64_t n : origin_.prompt_lengths) file.add_prompt_lengths(n);
  for (const std::string& t : origin_.texts) file.add_texts(t);
  file.set_command(origin_.command);
  file.set_blocks(kBlocks);
  for (const Row& row : rows_) file.add_rows()->mutable_importance()->Add(row.begin(), row.end());
  const std::string temporary = path + ".tmp";
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    if (!file.SerializeToOstream(&out) || !out.flush()) {
      std::remove(temporary.c_str());
      return base::Unavailable("profile {}: cannot be written", path);
    }
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) return base::Unavailable("profile {}: {}", path, error.message());
  return absl::OkStatus();
}

}  // namespace smartgen::transfer
