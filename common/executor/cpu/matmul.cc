// Two routes with equal results: few rows stream the packed weights once and decode them in
// registers; many rows decode a block of a panel into cache and use it for all rows at hand.
#include <algorithm>

#include "common/executor/cpu/matrix.h"

namespace smartgen::executor::cpu {
namespace {

// Measured on Zen 3 (32 KiB L1, 512 KiB L2): a block of decoded weights is 288 x 16 floats = 18
// KiB. Multiple of every format's block.
constexpr int64_t kKBlock = 288;
constexpr int64_t kRowBlock = 192;
constexpr int kPanelsPerTask = 8;

struct Output {
  const Matrix& matrix;
  const MatMul::Args& args;

  // products: rows x [width], leading dimension ld, of panel `p`.
  void Write(int p, int64_t row_begin, int rows, const float* products, int64_t ld) const {
    const Matrix::Panel& panel = matrix.panels()[p];
    for (int r = 0; r < rows; ++r) {
      float* y = args.y + (row_begin + r) * args.ldy + panel.column;
      const float* from = products + r * ld;
      if (args.then == MatMul::Then::kAdd) {
        for (int c = 0; c < panel.columns; ++c) y[c] += from[c];
      } else if (args.bias != nullptr) {
        const float* bias = args.bias + panel.column;
        for (int c = 0; c < panel.columns; ++c) y[c] = from[c] + bias[c];
      } else {
        std::copy(from, from + panel.columns, y);
      }
    }
  }
  // Panels p (gate) and p + 1 (up).
  void WritePair(int p, int64_t row_begin, int rows, const float* gate, const float* up,
                 int64_t ld) const {
    const Matrix::Panel& panel = matrix.panels()[p];
    for (int r = 0; r < rows; ++r) {
      SwiGlu(gate + r * ld, up + r * ld, panel.columns,
             args.y + (row_begin + r) * args.ldy + panel.column);
    }
  }
};

}  // namespace

MatMul::MatMul(base::ThreadPool* pool) : pool_(pool), scratch_(pool->size()) {
  for (Scratch& s : scratch_) {
    s.weights.Resize(kKBlock * PanelWidth());
    s.products.Resize(kRowBlock * 2 * PanelWidth());
  }
}

int MatMul::Panels(const Matrix& matrix, const Args& args) {
  const std::span<const Matrix::Panel> panels = matrix.panels();
  if (args.columns <= 0) return static_cast<int>(panels.size());
  // A part begins with a panel of its own.
  int count = 0;
  while (count < static_cast<int>(panels.size()) && panels[count].column < args.columns) ++count;
  return count;
}

void MatMul::Run(const Matrix& matrix, const Args& args) {
  if (args.rows <= kMaxGemvRows) {
    RunFew(matrix, args);
  } else {
    RunMany(matrix, args);
  }
}

void MatMul::RunFast(const Matrix& matrix, const Args& args) {
  if (matrix.fast() == nullptr) return Run(matrix, args);
  const OneDnnGemm& gemm = *matrix.fast();
  constexpr int64_t kBlock = OneDnnGemm::kRowBlock;
  const int64_t blocks = (args.rows + kBlock - 1) / kBlock;
  const int64_t bytes = gemm.RowBytes();
  converted_.Resize((blocks * kBlock * bytes + 3) / 4);
  auto* rows = reinterpret_cast<std::byte*>(converted_.data());
  pool_->ParallelFor(blocks * kBlock, [&](int64_t row, int) {
    std::byte* to = rows + row * bytes;
    if (row < args.rows) {
      gemm.ConvertRow(args.x + row * args.ldx, to);
    } else {
      std::fill(to, to + bytes, std::byte{0});
    }
  });
  const Output output{matrix, args};
  const int width = PanelWidth();
  for (Scratch& s : scratch_) s.products.Resize(kBlock * OneDnnGemm::kPanelsPerGroup * width);
  pool_->ParallelFor(blocks * gemm.groups(), [&](int64_t task, int worker) {
    const int64_t block = task / gemm.groups(), group = task % gemm.groups();
    float* products = scratch_[worker].products.data();
    gemm.Multiply(group, worker, rows + block * kBlock * bytes, products);
    const int64_t ld = gemm.GroupColumns(group);
    const int count = static_cast<int>(std::min(kBlock, args.rows - block * kBlock));
    const int first = static_cast<int>(group) * OneDnnGemm::kPanelsPerGroup;
    const int step = args.then == Then::kSwiGlu ? 2 : 1;
    for (int p = 0; p < ld / width; p += step) {
      const float* from = products + p * width;
      if (step == 2) {
        output.WritePair(first + p, block * kBlock, count, from, from + width, ld);
      } else {
        output.Write(first + p, block * kBlock, count, from, ld);
      }
    }
  });
}

void MatMul::RunFew(const Matrix& matrix, const Args& args) {
  const Output output{matrix, args};
  const int width = PanelWidth();
  const int panels = Panels(matrix, args);
  const bool pairs = args.then == Then::kSwiGlu;
  // A task is a whole number of pairs, small enough to balance, large enough to be worth handing
  // out.
  const int chunk = std::clamp(panels / (pool_->size() * 8) / 2 * 2, 2, 16);
  const int rows = static_cast<int>(args.rows);
  pool_->ParallelFor((panels + chunk - 1) / chunk, [&](int64_t task, int) {
    float products[kMaxGemvRows * 2 * kMaxPanelWidth];
    const int end = std::min(panels, static_cast<int>(task + 1) * chunk);
    for (int p = static_cast<int>(task) * chunk; p < end; p += 2) {
      const Matrix::Panel& first = matrix.panels()[p];
      const int64_t ld = 2 * width;
      const bool both = p + 1 < end;
      const Matrix::Panel& second = matrix.panels()[both ? p + 1 : p];
      const std::byte* data[2] = {first.data, second.data};
      const bool same = matrix.shape(first) == matrix.shape(second);
      GemvPanels(matrix.shape(first), data, both && same ? 2 : 1, args.x, args.ldx, rows, products,
                 ld);
      if (both && !same) {
        GemvPanels(matrix.shape(second), data + 1, 1, args.x, args.ldx, rows, products + width, ld);
      }
      if (pairs) {
        output.WritePair(p, 0, rows, products, products + width, ld);
      } else {
        output.Write(p, 0, rows, products, ld);
        if (both) output.Write(p + 1, 0, rows, products + width, ld);
      }
    }
  });
}

void MatMul::RunMany(const Matrix& matrix, const Args& args) {
  const int panels = Panels(matrix, args);
  const int64_t row_blocks = (args.rows + kRowBlock - 1) / kRowBlock;
  // Equal blocks rather than full ones and a rest.
  const int64_t block = (args.rows + row_blocks - 1) / row_blocks;
  const int64_t groups = (panels + kPanelsPerTask - 1) / kPanelsPerTask;
  pool_->ParallelFor(row_blocks * groups, [&](int64_t task, int worker) {
    const int64_t row_begin = task / groups * block;
    const int rows = static_cast<int>(std::min(block, args.rows - row_begin));
    const int begin = static_cast<int>(task % groups) * kPanelsPerTask;
    if (rows <= 0) return;
    ManyTask(matrix, args, row_begin, rows, begin, std::min(panels, begin + kPanelsPerTask),
             scratch_[worker]);
  });
}

void MatMul::ManyTask(const Matrix& matrix, const Args& args, int64_t row_begin, int rows,
                      int panel_begin, int panel_end, Scratch& scratch) {
  const Output output{matrix, args};
  const int width = PanelWidth();
  const float* x = args.x + row_begin * args.ldx;
  const int64_t half = kRowBlock * width;  // gate's products, then up's
  for (int p = panel_begin; p < panel_end; ++p) {
    const Matrix::Panel& panel = matrix.panels()[p];
    const bool pairs = args.then == Then::kSwiGlu;
    float* products = scratch.products.data() + (pairs && p % 2 == 1 ? half : 0);
    for (int64_t k = 0; k < matrix.k(); k += kKBlock) {
      const int64_t end = std::min(matrix.k(), k + kKBlock);
      ExpandPanel(matrix.shape(panel), panel.data, k, end, scratch.weights.data());
      GemmTile(x + k, args.ldx, rows, scratch.weights.data(), width, end - k, products, width,
               k > 0);
    }
    if (!pairs) {
      output.Write(p, row_begin, rows, products, width);
    } else if (p % 2 == 1) {
      output.WritePair(p - 1, row_begin, rows, products - half, products, width);
    }
  }
}

}  // namespace smartgen::executor::cpu
