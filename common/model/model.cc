#include "common/model/model.h"

#include <sys/stat.h>

#include "common/model/gguf.h"
#include "common/model/mapped_file.h"
#include "common/model/safetensors_model.h"

namespace smartgen::model {

absl::StatusOr<std::unique_ptr<Model>> Model::Open(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return base::NotFound("{}: no such file or folder", path);
  const auto in_path =
      [&](absl::StatusOr<std::unique_ptr<Model>> model) -> absl::StatusOr<std::unique_ptr<Model>> {
    if (model.ok()) return model;
    return base::Annotate(model.status(), path);
  };
  if (S_ISDIR(info.st_mode)) return in_path(OpenSafetensorsFolder(path));
  ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  const auto bytes = file->bytes();
  return in_path(OpenGguf(bytes, std::move(file)));
}

}  // namespace smartgen::model
