#include "common/model/model.h"

namespace smartgen::model {

std::string_view TensorTypeName(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return "F32";
    case TensorType::kF16:
      return "F16";
    case TensorType::kBF16:
      return "BF16";
    case TensorType::kQ4_0:
      return "Q4_0";
    case TensorType::kQ4_1:
      return "Q4_1";
    case TensorType::kQ5_0:
      return "Q5_0";
    case TensorType::kQ5_1:
      return "Q5_1";
    case TensorType::kQ8_0:
      return "Q8_0";
    case TensorType::kQ4_K:
      return "Q4_K";
    case TensorType::kQ5_K:
      return "Q5_K";
    case TensorType::kQ6_K:
      return "Q6_K";
  }
  return "?";
}

BlockShape BlockShapeOf(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return {1, 4};
    case TensorType::kF16:
    case TensorType::kBF16:
      return {1, 2};
    case TensorType::kQ4_0:
      return {32, 18};
    case TensorType::kQ4_1:
      return {32, 20};
    case TensorType::kQ5_0:
      return {32, 22};
    case TensorType::kQ5_1:
      return {32, 24};
    case TensorType::kQ8_0:
      return {32, 34};
    case TensorType::kQ4_K:
      return {256, 144};
    case TensorType::kQ5_K:
      return {256, 176};
    case TensorType::kQ6_K:
      return {256, 210};
  }
  return {1, 0};
}

}  // namespace smartgen::model
