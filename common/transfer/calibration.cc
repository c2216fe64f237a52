#include "common/transfer/calibration.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>

#include "common/transfer/calibration.pb.h"

namespace smartgen::transfer {
namespace {

constexpr uint32_t kMagic = 0x43475053;
// Points take some 30 bytes: anything larger is not a calibration.
constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxPoints = 4096;
constexpr size_t kMaxTextBytes = 4096;
constexpr int64_t kMaxTokens = 1 << 24;  // model::kMaxContext
constexpr int64_t kMaxBatch = 1 << 16;
constexpr int kMaxLayers = 1024;
constexpr int64_t kMaxKvBytesPerToken = 1LL << 32;
constexpr double kMaxSeconds = 1e6;
constexpr double kMaxBytesPerSecond = 1e13;

absl::Status CheckNumber(std::string_view what, double value, double max) {
  if (std::isfinite(value) && value > 0 && value <= max) return absl::OkStatus();
  return base::InvalidArgument("{}: want a number above 0, at most {:g}, got {:g}", what, max,
                               value);
}

absl::Status CheckRange(std::string_view what, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return base::InvalidArgument("{}: want {} to {}, got {}", what, min, max, value);
}

absl::Status CheckText(std::string_view what, const std::string& text) {
  if (text.size() <= kMaxTextBytes) return absl::OkStatus();
  return base::InvalidArgument("{}: want at most {} bytes, got {}", what, kMaxTextBytes,
                               text.size());
}

absl::Status CheckCount(std::string_view what, size_t count) {
  return CheckRange(what, static_cast<int64_t>(count), 0, kMaxPoints);
}

absl::Status CheckPoints(const CostPoints& points) {
  RETURN_IF_ERROR(CheckCount("prefill points", points.prefill.size()));
  RETURN_IF_ERROR(CheckCount("step points", points.steps.size()));
  RETURN_IF_ERROR(CheckCount("links", points.links.size()));
  for (const PrefillPoint& point : points.prefill) {
    RETURN_IF_ERROR(CheckRange("prefill point, tokens", point.tokens, 1, kMaxTokens));
    RETURN_IF_ERROR(CheckRange("prefill point, prefix", point.prefix, 0, kMaxTokens));
    RETURN_IF_ERROR(CheckNumber("prefill point, seconds", point.seconds, kMaxSeconds));
  }
  for (const StepPoint& point : points.steps) {
    RETURN_IF_ERROR(CheckRange("step point, batch", point.batch, 1, kMaxBatch));
    RETURN_IF_ERROR(CheckRange("step point, context", point.context, 0, kMaxTokens));
    RETURN_IF_ERROR(CheckNumber("step point, seconds", point.seconds, kMaxSeconds));
  }
  for (const LinkPoint& link : points.links) {
    RETURN_IF_ERROR(CheckText("link, peer", link.peer));
    RETURN_IF_ERROR(
        CheckNumber("link, bytes per second", link.bytes_per_second, kMaxBytesPerSecond));
    RETURN_IF_ERROR(CheckNumber("link, round trip", link.round_trip_seconds, kMaxSeconds));
  }
  return absl::OkStatus();
}

Calibration FromProto(const calibration::CalibrationFile& file) {
  Calibration out;
  out.subject.model_fingerprint = file.model_fingerprint();
  out.subject.compute = file.compute();
  out.subject.cpu = file.cpu();
  out.subject.threads = file.threads();
  out.model_name = file.model_name();
  out.max_prefill_tokens = file.max_prefill_tokens();
  out.layers = file.layers();
  out.kv_bytes_per_token = file.kv_bytes_per_token();
  out.command = file.command();
  out.unix_seconds = file.unix_seconds();
  for (const auto& p : file.prefill()) {
    out.points.prefill.push_back({p.tokens(), p.prefix(), p.seconds(), p.held_out()});
  }
  for (const auto& p : file.steps()) {
    out.points.steps.push_back({p.batch(), p.context(), p.seconds(), p.held_out()});
  }
  for (const auto& p : file.links()) {
    out.points.links.push_back({p.peer(), p.bytes_per_second(), p.round_trip_seconds()});
  }
  return out;
}

calibration::CalibrationFile ToProto(const Calibration& from) {
  calibration::CalibrationFile file;
  file.set_magic(kMagic);
  file.set_version(kCalibrationVersion);
  file.set_model_fingerprint(from.subject.model_fingerprint);
  file.set_compute(from.subject.compute);
  file.set_cpu(from.subject.cpu);
  file.set_threads(from.subject.threads);
  file.set_model_name(from.model_name);
  file.set_max_prefill_tokens(from.max_prefill_tokens);
  file.set_layers(from.layers);
  file.set_kv_bytes_per_token(from.kv_bytes_per_token);
  file.set_command(from.command);
  file.set_unix_seconds(from.unix_seconds);
  for (const PrefillPoint& p : from.points.prefill) {
    auto& out = *file.add_prefill();
    out.set_tokens(p.tokens);
    out.set_prefix(p.prefix);
    out.set_seconds(p.seconds);
    out.set_held_out(p.held_out);
  }
  for (const StepPoint& p : from.points.steps) {
    auto& out = *file.add_steps();
    out.set_batch(p.batch);
    out.set_context(p.context);
    out.set_seconds(p.seconds);
    out.set_held_out(p.held_out);
  }
  for (const LinkPoint& p : from.points.links) {
    auto& out = *file.add_links();
    out.set_peer(p.peer);
    out.set_bytes_per_second(p.bytes_per_second);
    out.set_round_trip_seconds(p.round_trip_seconds);
  }
  return file;
}

}  // namespace

absl::Status Calibration::Check() const {
  const std::pair<const char*, const std::string*> texts[] = {
      {"model fingerprint", &subject.model_fingerprint},
      {"compute", &subject.compute},
      {"cpu", &subject.cpu},
      {"model name", &model_name},
      {"command", &command}};
  for (const auto& [what, text] : texts) RETURN_IF_ERROR(CheckText(what, *text));
  RETURN_IF_ERROR(CheckRange("threads", subject.threads, 1, 1 << 16));
  RETURN_IF_ERROR(CheckRange("max_prefill_tokens", max_prefill_tokens, 1, kMaxTokens));
  RETURN_IF_ERROR(CheckRange("layers", layers, 1, kMaxLayers));
  RETURN_IF_ERROR(CheckRange("kv_bytes_per_token", kv_bytes_per_token, 1, kMaxKvBytesPerToken));
  return CheckPoints(points);
}

absl::Status Calibration::CheckFor(const Subject& ours) const {
  const std::string threads = std::to_string(subject.threads);
  const std::string our_threads = std::to_string(ours.threads);
  struct Field {
    const char* name;
    const std::string& made_for;
    const std::string& here;
  };
  const Field fields[] = {{"model", subject.model_fingerprint, ours.model_fingerprint},
                          {"compute", subject.compute, ours.compute},
                          {"cpu", subject.cpu, ours.cpu},
                          {"threads", threads, our_threads}};
  for (const Field& field : fields) {
    if (field.made_for == field.here) continue;
    return base::FailedPrecondition(
        "calibration: {}: made for {}, here it is {}; make one with `smartgen calibrate`",
        field.name, field.made_for, field.here);
  }
  return absl::OkStatus();
}

absl::StatusOr<Calibration> Calibration::Load(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) return base::NotFound("calibration {}: {}", path, error.message());
  if (static_cast<int64_t>(size) > kMaxFileBytes) {
    return base::InvalidArgument("calibration {}: want at most {} bytes, the file has {}", path,
                                 kMaxFileBytes, size);
  }
  std::string bytes(size, '\0');
  std::ifstream in(path, std::ios::binary);
  if (!in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
    return base::DataLoss("calibration {}: cannot be read", path);
  }
  calibration::CalibrationFile file;
  if (!file.ParseFromString(bytes) || file.magic() != kMagic) {
    return base::InvalidArgument("calibration {}: not a SmartGen calibration, or damaged", path);
  }
  if (file.version() != kCalibrationVersion) {
    return base::InvalidArgument("calibration {}: want version {}, the file has {}", path,
                                 kCalibrationVersion, file.version());
  }
  Calibration calibration = FromProto(file);
  RETURN_IF_ERROR(base::Annotate(calibration.Check(), fmt::format("calibration {}", path)));
  return calibration;
}

absl::Status Calibration::Save(const std::string& path) const {
  RETURN_IF_ERROR(base::Annotate(Check(), "calibration"));
  const calibration::CalibrationFile file = ToProto(*this);
  const std::string temporary = path + ".tmp";
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    if (!file.SerializeToOstream(&out) || !out.flush()) {
      std::remove(temporary.c_str());
      return base::Unavailable("calibration {}: cannot be written", path);
    }
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) return base::Unavailable("calibration {}: {}", path, error.message());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CostModel>> LoadCostModel(const std::string& path,
                                                         const Calibration::Subject& ours) {
  if (path.empty()) return std::unique_ptr<CostModel>();
  ASSIGN_OR_RETURN(const Calibration calibration, Calibration::Load(path));
  RETURN_IF_ERROR(base::Annotate(calibration.CheckFor(ours), path));
  auto model = CostModel::Create(calibration.points);
  if (!model.ok()) return base::Annotate(model.status(), path);
  return model;
}

}  // namespace smartgen::transfer
