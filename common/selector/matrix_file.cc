#include "common/selector/matrix_file.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "common/base/hash.h"

namespace smartgen::selector {
namespace {

constexpr uint32_t kMagic = 0x584d4753;  // "SGMX"
constexpr int64_t kMaxFileBytes = int64_t{1} << 30;
constexpr uint32_t kMaxFingerprint = 1024;
constexpr uint32_t kMaxLayers = 1024;  // as kv::KvLayout::Check
constexpr uint32_t kMaxSide = 1024;
constexpr float kOrthogonalWithin = 1e-3f;

std::span<const std::byte> Bytes(const std::string& s) {
  return {reinterpret_cast<const std::byte*>(s.data()), s.size()};
}

void AppendU32(std::string& out, uint32_t value) {
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  bool U32(uint32_t& value) {
    std::string_view at;
    if (!Take(4, at)) return false;
    value = 0;
    for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(at[i]);
    return true;
  }
  bool Take(size_t count, std::string_view& out) {
    if (count > rest_.size()) return false;
    out = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return true;
  }
  size_t left() const { return rest_.size(); }

 private:
  std::string_view rest_;
};

std::string_view PurposeName(HeadMatrices::Purpose purpose) {
  return purpose == HeadMatrices::Purpose::kSkew ? "skew" : "hash weights";
}

absl::StatusOr<HeadMatrices> Parse(std::string_view bytes, HeadMatrices::Purpose purpose) {
  Reader in(bytes);
  uint32_t magic = 0, version = 0, kind = 0, length = 0, layers = 0;
  if (!in.U32(magic) || magic != kMagic) {
    return base::InvalidArgument("not a SmartGen matrix file");
  }
  if (!in.U32(version) || version != kMatrixFileVersion) {
    return base::InvalidArgument("want version {}, the file has {}", kMatrixFileVersion, version);
  }
  if (!in.U32(kind) || kind != static_cast<uint32_t>(purpose)) {
    return base::InvalidArgument("want {} (purpose {}), the file has purpose {}",
                                 PurposeName(purpose), static_cast<uint32_t>(purpose), kind);
  }
  std::string_view fingerprint;
  if (!in.U32(length) || length > kMaxFingerprint || !in.Take(length, fingerprint) ||
      !in.U32(layers) || layers > kMaxLayers) {
    return base::InvalidArgument("want a fingerprint of at most {} bytes and at most {} layers",
                                 kMaxFingerprint, kMaxLayers);
  }
  HeadMatrices result{.purpose = purpose, .model_fingerprint = std::string(fingerprint)};
  result.layers.resize(layers);
  uint64_t total = 0;
  for (uint32_t i = 0; i < layers; ++i) {
    uint32_t heads = 0, rows = 0, columns = 0;
    if (!in.U32(heads) || !in.U32(rows) || !in.U32(columns) || heads > kMaxSide ||
        rows > kMaxSide || columns > kMaxSide) {
      return base::InvalidArgument(
          "layer {}: want at most {} heads, rows and columns, got {} {} {}", i, kMaxSide, heads,
          rows, columns);
    }
    result.layers[i] = {.heads = static_cast<int>(heads),
                        .rows = static_cast<int>(rows),
                        .columns = static_cast<int>(columns)};
    total += uint64_t{heads} * rows * columns;
  }
  if (in.left() != total * sizeof(float)) {
    return base::InvalidArgument("want {} bytes of values, the file has {}", total * sizeof(float),
                                 in.left());
  }
  for (HeadMatrices::Layer& layer : result.layers) {
    layer.values.resize(static_cast<size_t>(layer.heads) * layer.rows * layer.columns);
    std::string_view values;
    in.Take(layer.values.size() * sizeof(float), values);
    if (!values.empty()) std::memcpy(layer.values.data(), values.data(), values.size());
  }
  return result;
}

bool Orthogonal(std::span<const float> a, int n) {
  for (int i = 0; i < n; ++i) {
    for (int j = i; j < n; ++j) {
      double dot = 0;
      for (int r = 0; r < n; ++r) dot += static_cast<double>(a[r * n + i]) * a[r * n + j];
      if (!(std::fabs(dot - (i == j ? 1.0 : 0.0)) <= kOrthogonalWithin)) return false;
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<HeadMatrices> HeadMatrices::Load(const std::string& path, Purpose purpose) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) return base::NotFound("{} {}: {}", PurposeName(purpose), path, error.message());
  if (static_cast<int64_t>(size) > kMaxFileBytes) {
    return base::InvalidArgument("{} {}: want at most {} bytes, the file has {}",
                                 PurposeName(purpose), path, kMaxFileBytes, size);
  }
  std::string bytes(size, '\0');
  std::ifstream in(path, std::ios::binary);
  if (!in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
    return base::DataLoss("{} {}: cannot be read", PurposeName(purpose), path);
  }
  uint64_t sum = 0;
  if (bytes.size() > sizeof(sum)) {
    std::memcpy(&sum, bytes.data() + bytes.size() - sizeof(sum), sizeof(sum));
    bytes.resize(bytes.size() - sizeof(sum));
  }
  // Parsed first: "not such a file" and "another version" say more than "wrong checksum".
  auto parsed = Parse(bytes, purpose);
  if (!parsed.ok()) {
    return base::Annotate(parsed.status(), fmt::format("{} {}", PurposeName(purpose), path));
  }
  if (base::Hash64(Bytes(bytes)) != sum) {
    return base::DataLoss("{} {}: the checksum does not fit; the file is damaged",
                          PurposeName(purpose), path);
  }
  return parsed;
}

absl::StatusOr<HeadMatrices::Purpose> HeadMatrices::PurposeOf(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return base::NotFound("matrix file {}: cannot be read", path);
  std::string head(3 * sizeof(uint32_t), '\0');
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  Reader reader(std::string_view(head).substr(0, static_cast<size_t>(in.gcount())));
  uint32_t magic = 0, version = 0, purpose = 0;
  if (!reader.U32(magic) || magic != kMagic || !reader.U32(version) || !reader.U32(purpose)) {
    return base::InvalidArgument("matrix file {}: not a SmartGen matrix file", path);
  }
  for (const Purpose known : {Purpose::kSkew, Purpose::kHash}) {
    if (purpose == static_cast<uint32_t>(known)) return known;
  }
  return base::InvalidArgument("matrix file {}: want purpose 1 (skew) or 2 (hash), it has {}", path,
                               purpose);
}

absl::Status HeadMatrices::Save(const std::string& path) const {
  std::string bytes;
  AppendU32(bytes, kMagic);
  AppendU32(bytes, kMatrixFileVersion);
  AppendU32(bytes, static_cast<uint32_t>(purpose));
  AppendU32(bytes, static_cast<uint32_t>(model_fingerprint.size()));
  bytes += model_fingerprint;
  AppendU32(bytes, static_cast<uint32_t>(layers.size()));
  for (const Layer& layer : layers) {
    for (const int n : {layer.heads, layer.rows, layer.columns}) {
      AppendU32(bytes, static_cast<uint32_t>(n));
    }
  }
  for (const Layer& layer : layers) {
    bytes.append(reinterpret_cast<const char*>(layer.values.data()),
                 layer.values.size() * sizeof(float));
  }
  const uint64_t sum = base::Hash64(Bytes(bytes));
  bytes.append(reinterpret_cast<const char*>(&sum), sizeof(sum));
  const std::string temporary = path + ".tmp";
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    if (!out.write(bytes.data(), static_cast<std::streamsize>(bytes.size())) || !out.flush()) {
      std::remove(temporary.c_str());
      return base::Unavailable("{} {}: cannot be written", PurposeName(purpose), path);
    }
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (!error) return absl::OkStatus();
  return base::Unavailable("{} {}: {}", PurposeName(purpose), path, error.message());
}

absl::Status HeadMatrices::CheckShapes(const kv::KvLayout& layout, int first_layer,
                                       int hash_bits) const {
  if (static_cast<int>(layers.size()) != layout.num_layers()) {
    return base::FailedPrecondition("{}: made for {} layers, the model has {}",
                                    PurposeName(purpose), layers.size(), layout.num_layers());
  }
  for (int i = first_layer; i < layout.num_layers(); ++i) {
    const kv::LayerLayout& want = layout.layers[i];
    const Layer& have = layers[i];
    const int columns = purpose == Purpose::kSkew ? want.head_dim : hash_bits;
    const size_t size = static_cast<size_t>(want.kv_heads) * want.head_dim * columns;
    if (have.heads != want.kv_heads || have.rows != want.head_dim || have.columns != columns ||
        have.values.size() != size) {
      return base::FailedPrecondition("{}: layer {}: want {} heads of {} x {}, got {} of {} x {}",
                                      PurposeName(purpose), i, want.kv_heads, want.head_dim,
                                      columns, have.heads, have.rows, have.columns);
    }
    if (!std::all_of(have.values.begin(), have.values.end(),
                     [](float x) { return std::isfinite(x); })) {
      return base::InvalidArgument("{}: layer {}: not all values are finite", PurposeName(purpose),
                                   i);
    }
    for (int h = 0; purpose == Purpose::kSkew && h < have.heads; ++h) {
      if (!Orthogonal(have.Matrix(h), have.rows)) {
        return base::InvalidArgument("skew: layer {} head {}: not orthogonal within {}", i, h,
                                     kOrthogonalWithin);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status HeadMatrices::CheckModel(const std::string& fingerprint) const {
  if (model_fingerprint == fingerprint) return absl::OkStatus();
  return base::FailedPrecondition(
      "{}: made for model {}, this model is {}; make it anew with `smartgen profile`",
      PurposeName(purpose), model_fingerprint, fingerprint);
}

}  // namespace smartgen::selector
