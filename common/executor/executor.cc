#include "common/executor/executor.h"

namespace smartgen::executor {

std::string_view ComputeTypeName(ComputeType type) {
  switch (type) {
    case ComputeType::kAuto:
      return "auto";
    case ComputeType::kF32:
      return "f32";
    case ComputeType::kBF16:
      return "bf16";
  }
  return "?";
}

absl::StatusOr<ComputeType> ParseComputeType(std::string_view name) {
  for (ComputeType type : {ComputeType::kAuto, ComputeType::kF32, ComputeType::kBF16}) {
    if (name == ComputeTypeName(type)) return type;
  }
  return base::InvalidArgument("compute type: want auto, f32 or bf16, got '{}'", name);
}

}  // namespace smartgen::executor
