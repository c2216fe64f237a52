#include "common/executor/cpu/matrix.h"

#include <algorithm>
#include <cstring>

#include "common/executor/cpu/unpack.h"

namespace smartgen::executor::cpu {
namespace {

// Full-precision values: k-major, columns side by side.
template <class T>
void PackPlain(const model::TensorView& tensor, const PanelShape& shape,
               std::span<const int64_t> rows, std::byte* out) {
  auto* to = reinterpret_cast<T*>(out);
  std::vector<T> row(tensor.cols);
  for (size_t c = 0; c < rows.size(); ++c) {
    std::memcpy(row.data(), tensor.data.data() + rows[c] * tensor.cols * sizeof(T),
                tensor.cols * sizeof(T));
    for (int64_t k = 0; k < tensor.cols; ++k) to[k * shape.width + c] = row[k];
  }
}

void PutScale(const PanelShape& shape, int column, float value, std::byte* at) {
  if (shape.half_scales) {
    bool ok = true;
    const uint16_t half = ExactHalf(value, &ok);
    std::memcpy(at + column * 2, &half, 2);
  } else {
    std::memcpy(at + column * 4, &value, 4);
  }
}

void PackQuantised(const model::TensorView& tensor, const PanelShape& shape,
                   std::span<const int64_t> rows, std::byte* out) {
  UnpackedRow row;
  const int64_t scale_bytes = shape.ScaleBytes();
  for (int c = 0; c < static_cast<int>(rows.size()); ++c) {
    UnpackRow(tensor, rows[c], shape.block, &row);
    std::byte* block = out;
    for (int64_t b = 0; b < shape.Blocks(); ++b, block += shape.BlockBytes()) {
      PutScale(shape, c, row.scale[b], block);
      if (shape.has_min) PutScale(shape, c, row.min[b], block + scale_bytes / 2);
      const int8_t* q = row.q.data() + b * shape.block;
      if (shape.format == PanelFormat::kByte) {
        auto* to = reinterpret_cast<int8_t*>(block + scale_bytes);
        for (int i = 0; i < shape.block; ++i) to[i * shape.width + c] = q[i];
        continue;
      }
      for (int group = 0; group < shape.block / 8; ++group) {
        uint32_t word = 0;
        for (int j = 0; j < 8; ++j) word |= static_cast<uint32_t>(q[group * 8 + j]) << (4 * j);
        std::memcpy(block + scale_bytes + (group * shape.width + c) * 4, &word, 4);
      }
    }
  }
}

void PackPanel(const model::TensorView& tensor, const PanelShape& shape,
               std::span<const int64_t> rows, std::byte* out) {
  std::memset(out, 0, shape.PanelBytes());
  switch (shape.format) {
    case PanelFormat::kF32:
      return PackPlain<uint32_t>(tensor, shape, rows, out);
    case PanelFormat::kF16:
    case PanelFormat::kBF16:
      return PackPlain<uint16_t>(tensor, shape, rows, out);
    case PanelFormat::kNibble:
    case PanelFormat::kByte:
      return PackQuantised(tensor, shape, rows, out);
  }
}

}  // namespace

std::vector<Matrix::Panel> Matrix::AddPart(const Part& part, int64_t column, base::ThreadPool& pool,
                                           Arena& arena) {
  const int width = PanelWidth();
  const int shape_index = static_cast<int>(shapes_.size());
  shapes_.push_back(ShapeFor(part.tensor, width));
  const PanelShape shape = shapes_.back();
  const int64_t columns = part.Columns();
  const int64_t count = (columns + width - 1) / width;
  std::byte* data = arena.Allocate(count * shape.PanelBytes());
  std::vector<Panel> panels(count);
  pool.ParallelFor(count, [&](int64_t i, int) {
    const int valid = static_cast<int>(std::min<int64_t>(width, columns - i * width));
    std::vector<int64_t> rows(valid);
    for (int c = 0; c < valid; ++c) {
      rows[c] = part.rows.empty() ? i * width + c : part.rows[i * width + c];
    }
    std::byte* to = data + i * shape.PanelBytes();
    PackPanel(part.tensor, shape, rows, to);
    panels[i] = {.shape = shape_index, .data = to, .column = column + i * width, .columns = valid};
  });
  return panels;
}

Matrix Matrix::Pack(std::span<const Part> parts, base::ThreadPool& pool, Arena& arena) {
  Matrix m;
  m.k_ = parts.front().tensor.cols;
  for (const Part& part : parts) {
    for (const Panel& panel : m.AddPart(part, m.columns_, pool, arena)) m.panels_.push_back(panel);
    m.columns_ += part.Columns();
  }
  return m;
}

Matrix Matrix::PackPairs(const Part& gate, const Part& up, base::ThreadPool& pool, Arena& arena) {
  Matrix m;
  m.k_ = gate.tensor.cols;
  m.columns_ = gate.Columns();
  const std::vector<Panel> first = m.AddPart(gate, 0, pool, arena);
  const std::vector<Panel> second = m.AddPart(up, 0, pool, arena);
  for (size_t i = 0; i < first.size(); ++i) {
    m.panels_.push_back(first[i]);
    m.panels_.push_back(second[i]);
  }
  return m;
}

absl::Status Matrix::AddFast(GemmType type, base::ThreadPool& pool) {
  ASSIGN_OR_RETURN(fast_, OneDnnGemm::Create(*this, type, pool));
  return absl::OkStatus();
}

void Matrix::DecodeRow(int64_t index, float* out) const {
  const int width = PanelWidth();
  const Panel& panel = panels_[index / width];
  const PanelShape& s = shape(panel);
  const int64_t lane = index % width;
  // A few blocks at a time, so that the scratch stays on the stack.
  constexpr int64_t kStep = 32;
  float values[kStep * kMaxPanelWidth];
  for (int64_t k = 0; k < k_; k += kStep) {
    const int64_t end = std::min(k_, k + kStep);
    ExpandPanel(s, panel.data, k, end, values);
    for (int64_t i = k; i < end; ++i) out[i] = values[(i - k) * width + lane];
  }
}

}  // namespace smartgen::executor::cpu
