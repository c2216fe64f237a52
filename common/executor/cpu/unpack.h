// Rows of quantised tensors as integers, scales and minima.
#pragma once

#include <cstdint>
#include <vector>

#include "common/executor/cpu/panel.h"
#include "common/model/model.h"

namespace smartgen::executor::cpu {

// One row: w[k] = scale[k / block] * q[k] + min[k / block].
struct UnpackedRow {
  std::vector<int8_t> q;
  std::vector<float> scale;
  std::vector<float> min;
};

// The panel shape that holds a tensor of this type without loss. `width` 0 is filled by the caller.
PanelShape ShapeFor(const model::TensorView& tensor, int width);

// For quantised types only; `block` as ShapeFor says.
void UnpackRow(const model::TensorView& tensor, int64_t row, int block, UnpackedRow* out);

// The half whose value is exactly `value`; ok is false if there is none.
uint16_t ExactHalf(float value, bool* ok);

}  // namespace smartgen::executor::cpu
