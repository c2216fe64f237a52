// Reads everything that a model offers, so that a view that reaches too far is seen.
#pragma once

#include <cstdlib>
#include <vector>

#include "common/model/model.h"

namespace smartgen::fuzz {

inline void TouchModel(const model::Model& model) {
  if (!model.config().Check().ok()) std::abort();
  (void)model.config().RopeInverseFrequencies();
  std::vector<float> row;
  for (int layer = -1; layer <= model.config().num_layers(); ++layer) {
    for (int weight = 0; weight <= static_cast<int>(model::Weight::kDown); ++weight) {
      const auto view = model.Find(static_cast<model::Weight>(weight), layer);
      if (!view.has_value()) continue;
      row.resize(static_cast<size_t>(view->cols));
      model::Dequantize(*view, 0, 1, row);
      model::Dequantize(*view, view->rows - 1, view->rows, row);
    }
  }
}

}  // namespace smartgen::fuzz
