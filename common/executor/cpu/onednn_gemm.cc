#include "common/executor/cpu/onednn_gemm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>

#include "common/executor/cpu/kernels.h"
#include "common/executor/cpu/matrix.h"

// From libgomp, which Debian's oneDNN is built on: the setting is the calling thread's own.
extern "C" void omp_set_num_threads(int threads);

namespace smartgen::executor::cpu {
namespace {

using dnnl::memory;

memory::data_type TypeOf(GemmType type) {
  return type == GemmType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
}

// oneDNN must not start threads of its own under a worker of ours.
void OneThread() {
  thread_local const bool done = [] {
    omp_set_num_threads(1);
    return true;
  }();
  (void)done;
}

// A matrix of random floats in memory of its own.
struct RandomMatrix {
  std::vector<float> values;
  model::TensorView view;

  RandomMatrix(int64_t rows, int64_t cols) : values(rows * cols) {
    uint32_t state = 12345;
    for (float& v : values) {
      state = state * 1664525u + 1013904223u;
      v = static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
    }
    view = {.name = "random",
            .type = model::TensorType::kF32,
            .rows = rows,
            .cols = cols,
            .data = std::as_bytes(std::span<const float>(values))};
  }
};

}  // namespace

struct OneDnnGemm::Impl {
  struct Product {
    dnnl::matmul::primitive_desc desc;
    dnnl::matmul primitive;
  };
  struct Worker {
    std::unique_ptr<std::byte, FreeDeleter> scratch;
  };

  GemmType type;
  int64_t k = 0;
  std::vector<int64_t> columns;  // of each group
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::map<int64_t, Product> products;  // by number of columns
  std::vector<memory> weights;          // of each group
  std::vector<std::unique_ptr<std::byte, FreeDeleter>> weight_bytes;
  std::vector<Worker> workers;

  memory::desc Rows() const { return {{kRowBlock, k}, TypeOf(type), memory::format_tag::ab}; }
  void AddProduct(int64_t n) {
    if (products.contains(n)) return;
    const memory::desc w({k, n}, TypeOf(type), memory::format_tag::any);
    const memory::desc y({kRowBlock, n}, memory::data_type::f32, memory::format_tag::ab);
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(Rows(), w, y), attr, engine);
    products.emplace(n, Product{desc, dnnl::matmul(desc)});
  }
  void AddWeights(const Matrix& matrix, int first_panel, int panels);
};

void OneDnnGemm::Impl::AddWeights(const Matrix& matrix, int first_panel, int panels) {
  const int width = PanelWidth();
  const int64_t n = static_cast<int64_t>(panels) * width;
  std::vector<float> plain(k * n), panel(k * width);
  for (int p = 0; p < panels; ++p) {
    const Matrix::Panel& from = matrix.panels()[first_panel + p];
    ExpandPanel(matrix.shape(from), from.data, 0, k, panel.data());
    for (int64_t i = 0; i < k; ++i) {
      std::copy_n(panel.data() + i * width, width, plain.data() + i * n + p * width);
    }
  }
  const memory::desc wanted = products.at(n).desc.weights_desc();
  weight_bytes.push_back(AllocateAligned(static_cast<int64_t>(wanted.get_size())));
  memory packed(wanted, engine, weight_bytes.back().get());
  memory source({{k, n}, memory::data_type::f32, memory::format_tag::ab}, engine, plain.data());
  dnnl::stream stream(engine);
  dnnl::reorder(source, packed).execute(stream, source, packed);
  stream.wait();
  weights.push_back(packed);
  columns.push_back(n);
}

OneDnnGemm::OneDnnGemm(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OneDnnGemm::~OneDnnGemm() = default;

absl::StatusOr<std::unique_ptr<OneDnnGemm>> OneDnnGemm::Create(const Matrix& matrix, GemmType type,
                                                               base::ThreadPool& pool) {
  OneThread();
  auto impl = std::make_unique<Impl>();
  impl->type = type;
  impl->k = matrix.k();
  const int panels = static_cast<int>(matrix.panels().size());
  // The library throws; nothing of ours does.
  try {
    for (int p = 0; p < panels; p += kPanelsPerGroup) {
      const int count = std::min(kPanelsPerGroup, panels - p);
      impl->AddProduct(static_cast<int64_t>(count) * PanelWidth());
      impl->AddWeights(matrix, p, count);
    }
  } catch (const dnnl::error& e) {
    return base::Unimplemented("oneDNN has no {} product here: {}",
                               type == GemmType::kBF16 ? "bf16" : "f32", e.message);
  }
  int64_t scratch = 1;
  for (const auto& [n, product] : impl->products) {
    scratch = std::max(scratch, static_cast<int64_t>(product.desc.scratchpad_desc().get_size()));
  }
  impl->workers.resize(pool.size());
  for (Impl::Worker& worker : impl->workers) worker.scratch = AllocateAligned(scratch);
  return std::unique_ptr<OneDnnGemm>(new OneDnnGemm(std::move(impl)));
}

int64_t OneDnnGemm::groups() const { return static_cast<int64_t>(impl_->columns.size()); }
int64_t OneDnnGemm::GroupColumns(int64_t group) const { return impl_->columns[group]; }
int64_t OneDnnGemm::RowBytes() const { return impl_->k * (impl_->type == GemmType::kBF16 ? 2 : 4); }

void OneDnnGemm::ConvertRow(const float* x, std::byte* out) const {
  StoreKv(x, impl_->k, impl_->type == GemmType::kBF16 ? kv::DType::kBF16 : kv::DType::kF32, out);
}

void OneDnnGemm::Multiply(int64_t group, int worker, const std::byte* rows, float* products) const {
  OneThread();
  const Impl::Product& product = impl_->products.at(impl_->columns[group]);
  dnnl::stream stream(impl_->engine);
  memory x(impl_->Rows(), impl_->engine, const_cast<std::byte*>(rows));
  memory y(product.desc.dst_desc(), impl_->engine, products);
  memory scratch(product.desc.scratchpad_desc(), impl_->engine,
                 impl_->workers[worker].scratch.get());
  product.primitive.execute(stream, {{DNNL_ARG_SRC, x},
                                     {DNNL_ARG_WEIGHTS, impl_->weights[group]},
                                     {DNNL_ARG_DST, y},
                                     {DNNL_ARG_SCRATCHPAD, scratch}});
  stream.wait();
}

absl::Status VerifyRows(GemmType type, base::ThreadPool& pool) {
  constexpr int64_t kK = 576, kN = 512;
  Arena arena;
  const RandomMatrix weights(kN, kK), rows(OneDnnGemm::kRowBlock, kK);
  const Matrix::Part part{weights.view, {}};
  const Matrix matrix = Matrix::Pack({&part, 1}, pool, arena);
  ASSIGN_OR_RETURN(const std::unique_ptr<OneDnnGemm> gemm, OneDnnGemm::Create(matrix, type, pool));
  const int64_t bytes = gemm->RowBytes(), n = gemm->GroupColumns(0);
  std::vector<std::byte> block(bytes * OneDnnGemm::kRowBlock), other(block.size());
  for (int64_t r = 0; r < OneDnnGemm::kRowBlock; ++r) {
    gemm->ConvertRow(rows.values.data() + r * kK, block.data() + r * bytes);
  }
  std::vector<float> want(OneDnnGemm::kRowBlock * n), got(want.size()), exact(n);
  gemm->Multiply(0, 0, block.data(), want.data());
  for (int64_t shift : {1, 5, 17, 40, 63}) {
    std::fill(other.begin(), other.end(), std::byte{0});
    const int64_t count = OneDnnGemm::kRowBlock - shift;
    std::copy_n(block.data(), count * bytes, other.data() + shift * bytes);
    gemm->Multiply(0, 0, other.data(), got.data());
    if (std::memcmp(got.data() + shift * n, want.data(), count * n * sizeof(float)) != 0) {
      return base::Internal("oneDNN: a row's product changes with its place in the block");
    }
  }
  const double tolerance = (type == GemmType::kBF16 ? 0x1p-7 : 0x1p-18) * std::sqrt(double{kK});
  std::vector<float> w(kK);
  for (int64_t c = 0; c < n; ++c) {
    matrix.DecodeRow(c, w.data());
    double sum = 0;
    for (int64_t i = 0; i < kK; ++i) sum += static_cast<double>(w[i]) * rows.values[i];
    if (!(std::abs(sum - want[c]) <= tolerance)) {
      return base::Internal("oneDNN: product {} is {}, want {} within {}", c, want[c], sum,
                            tolerance);
    }
  }
  return absl::OkStatus();
}

}  // namespace smartgen::executor::cpu
