#include <cstdlib>
#include <filesystem>

#include "common/model/known_models.h"
#include "common/model/model.h"

namespace smartgen::model {
namespace {

namespace fs = std::filesystem;

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

absl::StatusOr<fs::path> CacheFolder(const std::string& given) {
  if (!given.empty()) return fs::path(given);
  const char* cache = std::getenv("SMARTGEN_CACHE");
  if (cache != nullptr && *cache != '\0') return fs::path(cache);
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return fs::path(home) / ".cache" / "smartgen";
  return base::NotFound("where models are kept is unknown: neither SMARTGEN_CACHE nor HOME is set");
}

std::string KnownNames() {
  std::string names;
  for (const KnownModel& model : kKnownModels) {
    if (!names.empty()) names += ", ";
    names += model.name;
  }
  return names;
}

}  // namespace

absl::StatusOr<std::string> ResolveModelPath(const std::string& name_or_path,
                                             const std::string& cache_dir) {
  if (name_or_path.empty()) return base::InvalidArgument("no model named");
  if (Exists(name_or_path)) return name_or_path;
  const KnownModel* known = FindKnownModel(name_or_path);
  if (known == nullptr) {
    return base::NotFound(
        "model {}: want a GGUF file, a folder with safetensors, or one of the names {}; there is "
        "no "
        "such file, folder or name",
        name_or_path, KnownNames());
  }
  ASSIGN_OR_RETURN(const fs::path folder, CacheFolder(cache_dir));
  const fs::path path = folder / known->file;
  if (Exists(path)) return path.string();
  return base::NotFound("model {}: {} does not exist; fetch it with: smartgen fetch-model {}{}",
                        name_or_path, path.string(), name_or_path,
                        cache_dir.empty() ? "" : " --dir " + cache_dir);
}

}  // namespace smartgen::model
