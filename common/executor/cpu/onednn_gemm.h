// Products by oneDNN in bf16, for machines whose matrix units make them several times faster than
// float.
//
// oneDNN is called on one thread at a time for each task of our own pool. Always with blocks of
// exactly kRowBlock rows (the last one padded with zeros): its kernels choose their tiling by the
// number of rows, so this is what makes a row's bits independent of the rows around it. VerifyRows
// checks that at start.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/executor/cpu/memory.h"

namespace smartgen::executor::cpu {

class Matrix;

// Element type of weights and activations; sums and results are float.
enum class GemmType { kF32, kBF16 };

// A matrix's weights in oneDNN's own layout, in groups of panels. Thread-safe after Create, but for
// the scratch of a worker.
class OneDnnGemm {
 public:
  static constexpr int64_t kRowBlock = 64;
  static constexpr int kPanelsPerGroup = 16;

  // Unimplemented where this machine or oneDNN lacks the type.
  static absl::StatusOr<std::unique_ptr<OneDnnGemm>> Create(const Matrix& matrix, GemmType type,
                                                            base::ThreadPool& pool);
  ~OneDnnGemm();

  int64_t groups() const;
  int64_t GroupColumns(int64_t group) const;
  // Bytes of a row of converted activations.
  int64_t RowBytes() const;
  void ConvertRow(const float* x, std::byte* out) const;
  // products[kRowBlock][GroupColumns(group)] = kRowBlock converted rows times the group's panels.
  void Multiply(int64_t group, int worker, const std::byte* rows, float* products) const;

 private:
  struct Impl;
  explicit OneDnnGemm(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Multiplies random rows at different places of a block, and alone among zeros: Internal if the
// bits differ, or if the values are not those of own float kernels to the type's precision.
absl::Status VerifyRows(GemmType type, base::ThreadPool& pool);

}  // namespace smartgen::executor::cpu
