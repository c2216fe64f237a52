#include "common/model/safetensors_model.h"
namespace smartgen::model {
absl::StatusOr<std::unique_ptr<Model>> OpenSafetensorsFolder(const std::string&) {
  return base::Unimplemented("soon");
}
}  // namespace smartgen::model
