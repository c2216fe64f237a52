#include "common/selector/parameters.h"

#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "common/base/hash.h"

namespace smartgen::selector {
namespace {

using Purpose = HeadMatrices::Purpose;

}  // namespace

absl::StatusOr<Parameters> LoadParameters(const std::string& path,
                                          const std::string& model_fingerprint,
                                          const kv::KvLayout& layout, const Options& options) {
  Parameters parameters;
  if (path.empty()) return parameters;
  const auto load = [&](const std::string& file, Purpose purpose) -> absl::Status {
    ASSIGN_OR_RETURN(HeadMatrices matrices, HeadMatrices::Load(file, purpose));
    absl::Status fits = matrices.CheckModel(model_fingerprint);
    if (fits.ok()) fits = matrices.CheckShapes(layout, options.dense_layers, options.hash_bits);
    RETURN_IF_ERROR(base::Annotate(fits, file));
    (purpose == Purpose::kSkew ? parameters.skew : parameters.hash_weights) = std::move(matrices);
    return absl::OkStatus();
  };
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    ASSIGN_OR_RETURN(const Purpose purpose, HeadMatrices::PurposeOf(path));
    RETURN_IF_ERROR(load(path, purpose));
    return parameters;
  }
  for (const auto& [name, purpose] :
       {std::pair(kSkewFile, Purpose::kSkew), std::pair(kHashFile, Purpose::kHash)}) {
    const std::string file = (std::filesystem::path(path) / name).string();
    if (std::filesystem::exists(file, error)) RETURN_IF_ERROR(load(file, purpose));
  }
  if (parameters.skew.empty() && parameters.hash_weights.empty()) {
    return base::NotFound("selector parameters: want {} or {} in {}", kSkewFile, kHashFile, path);
  }
  return parameters;
}

uint64_t DigestOf(const Parameters& parameters) {
  if (parameters.skew.empty() && parameters.hash_weights.empty()) return 0;
  base::Hasher64 hasher;
  for (const HeadMatrices* matrices : {&parameters.skew, &parameters.hash_weights}) {
    const uint64_t layers = matrices->layers.size();
    hasher.Update(std::as_bytes(std::span(&layers, 1)));
    for (const HeadMatrices::Layer& layer : matrices->layers) {
      hasher.Update(std::as_bytes(std::span<const float>(layer.values)));
    }
  }
  return hasher.Digest();
}

}  // namespace smartgen::selector
