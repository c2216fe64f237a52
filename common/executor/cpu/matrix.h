// A weight matrix, packed for the kernels, and its products with rows of activations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/thread_pool.h"
#include "common/executor/cpu/kernels.h"
#include "common/executor/cpu/memory.h"
#include "common/executor/cpu/onednn_gemm.h"
#include "common/executor/cpu/panel.h"
#include "common/model/model.h"

namespace smartgen::executor::cpu {

// Immutable after Pack; thread-safe.
class Matrix {
 public:
  struct Panel {
    int shape = 0;  // index into shapes
    const std::byte* data = nullptr;
    int64_t column = 0;  // of the product, where the panel's first column goes
    int columns = 0;     // valid ones; the rest of the panel is zero
  };
  // A tensor, or some of its rows in another order.
  struct Part {
    model::TensorView tensor;
    std::vector<int64_t> rows;  // empty: all, in order
    int64_t Columns() const {
      return rows.empty() ? tensor.rows : static_cast<int64_t>(rows.size());
    }
  };

  // The product's columns are the parts' rows, one part after the other. All parts have the same
  // number of columns k. Memory comes from `arena`, which must outlive the matrix.
  static Matrix Pack(std::span<const Part> parts, base::ThreadPool& pool, Arena& arena);
  // Panels of `gate` and `up` alternate, for MatMul's kSwiGlu. Both have the same shape.
  static Matrix PackPairs(const Part& gate, const Part& up, base::ThreadPool& pool, Arena& arena);

  int64_t k() const { return k_; }
  int64_t columns() const { return columns_; }
  std::span<const Panel> panels() const { return panels_; }
  const PanelShape& shape(const Panel& panel) const { return shapes_[panel.shape]; }
  // Lets MatMul::RunFast use oneDNN for this matrix.
  absl::Status AddFast(GemmType type, base::ThreadPool& pool);
  const OneDnnGemm* fast() const { return fast_.get(); }
  // Row `index` of a matrix of one part, decoded (an embedding). `out` has k values.
  void DecodeRow(int64_t index, float* out) const;

 private:
  std::vector<Panel> AddPart(const Part& part, int64_t column, base::ThreadPool& pool,
                             Arena& arena);

  int64_t k_ = 0;
  int64_t columns_ = 0;
  std::vector<PanelShape> shapes_;
  std::vector<Panel> panels_;
  std::unique_ptr<OneDnnGemm> fast_;
};

// Products on a thread pool. One call at a time.
class MatMul {
 public:
  enum class Then {
    kStore,   // y = W x (+ bias)
    kAdd,     // y += W x
    kSwiGlu,  // y = silu(W_gate x) * W_up x, of a matrix from PackPairs
  };
  struct Args {
    const float* x = nullptr;  // rows x k
    int64_t ldx = 0;
    int64_t rows = 0;
    float* y = nullptr;  // rows x columns
    int64_t ldy = 0;
    Then then = Then::kStore;
    const float* bias = nullptr;  // columns values, or null
    // Run, > 0: only the first so many columns, those of the matrix's first part or parts.
    int64_t columns = 0;
  };

  explicit MatMul(base::ThreadPool* pool);
  // A row of y depends on its row of x only, bit for bit.
  void Run(const Matrix& matrix, const Args& args);
  // The same in the type that the matrix's AddFast named, if there was one. Rows are independent of
  // each other as well, but their bits are not those of Run.
  void RunFast(const Matrix& matrix, const Args& args);

 private:
  struct Scratch {
    FloatBuffer weights;   // [kKBlock][panel width]
    FloatBuffer products;  // [rows][2 * panel width], or a group's of oneDNN
  };
  static int Panels(const Matrix& matrix, const Args& args);
  void RunFew(const Matrix& matrix, const Args& args);
  void RunMany(const Matrix& matrix, const Args& args);
  void ManyTask(const Matrix& matrix, const Args& args, int64_t row_begin, int rows,
                int panel_begin, int panel_end, Scratch& scratch);

  base::ThreadPool* pool_;
  std::vector<Scratch> scratch_;  // one a worker
  FloatBuffer converted_;         // RunFast: activations in the other type
};

}  // namespace smartgen::executor::cpu
