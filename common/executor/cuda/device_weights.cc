#include "common/executor/cuda/device_weights.h"

#include <optional>

#include "common/executor/shapes.h"
#include "common/selector/dtype.h"

namespace smartgen::executor::cuda {
namespace {

using model::TensorView;
using model::Weight;

// Decoded and on its way at a time.
constexpr int64_t kPieceElements = 4 << 20;

// Rows of a tensor in an order; empty: as they are.
struct Part {
  TensorView view;
  std::vector<int64_t> order;
};

class Loader {
 public:
  Loader(const model::Model& model, Element element, Context& context)
      : model_(model), element_(element), context_(context) {}

  absl::Status Run(DeviceWeights& out) {
    const model::ModelConfig& config = model_.config();
    ASSIGN_OR_RETURN(out.embedding, Matrix(Weight::kEmbedding, 0));
    if (!config.tied_output) {
      ASSIGN_OR_RETURN(out.separate_output, Matrix(Weight::kOutput, 0));
    }
    ASSIGN_OR_RETURN(out.output_norm, Vector({{Weight::kOutputNorm, {}}}, 0));
    const std::vector<float> frequencies = config.RopeInverseFrequencies();
    ASSIGN_OR_RETURN(out.frequencies, Values(frequencies));
    out.layers.resize(config.layers.size());
    for (int l = 0; l < config.num_layers(); ++l) {
      RETURN_IF_ERROR(base::Annotate(Layer(l, out.layers[l]), fmt::format("layer {}", l)));
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<TensorView> Find(Weight weight, int layer) const {
    const std::optional<TensorView> view = model_.Find(weight, layer);
    if (view.has_value()) return *view;
    return base::Internal("layer {}: the model has no weight number {}", layer,
                          static_cast<int>(weight));
  }

  absl::Status Layer(int l, DeviceLayerWeights& layer) {
    const model::LayerConfig& config = model_.config().layers[l];
    std::vector<int64_t> q_order, k_order;
    if (model_.config().rope.interleaved) {
      q_order = HalfSplitOrder(config.num_heads, config.head_dim);
      k_order = HalfSplitOrder(config.num_kv_heads, config.head_dim);
    }
    ASSIGN_OR_RETURN(layer.attn_norm, Vector({{Weight::kAttnNorm, {}}}, l));
    ASSIGN_OR_RETURN(const TensorView q, Find(Weight::kQ, l));
    ASSIGN_OR_RETURN(const TensorView k, Find(Weight::kK, l));
    ASSIGN_OR_RETURN(const TensorView v, Find(Weight::kV, l));
    ASSIGN_OR_RETURN(layer.qkv, Rows({{q, q_order}, {k, k_order}, {v, {}}}));
    if (model_.config().qkv_bias) {
      ASSIGN_OR_RETURN(
          layer.qkv_bias,
          Vector({{Weight::kQBias, q_order}, {Weight::kKBias, k_order}, {Weight::kVBias, {}}}, l));
    }
    ASSIGN_OR_RETURN(layer.o, Matrix(Weight::kO, l));
    ASSIGN_OR_RETURN(layer.ffn_norm, Vector({{Weight::kFfnNorm, {}}}, l));
    ASSIGN_OR_RETURN(const TensorView gate, Find(Weight::kGate, l));
    ASSIGN_OR_RETURN(const TensorView up, Find(Weight::kUp, l));
    ASSIGN_OR_RETURN(layer.gate_up, Rows({{gate, {}}, {up, {}}}));
    ASSIGN_OR_RETURN(layer.down, Matrix(Weight::kDown, l));
    return absl::OkStatus();
  }

  // Vectors one after the other, each in an order of its values.
  absl::StatusOr<DeviceMatrix> Vector(
      const std::vector<std::pair<Weight, std::vector<int64_t>>>& parts, int layer) {
    std::vector<float> values;
    for (const auto& [weight, order] : parts) {
      ASSIGN_OR_RETURN(const TensorView view, Find(weight, layer));
      std::vector<float> part(static_cast<size_t>(view.rows * view.cols));
      model::Dequantize(view, 0, view.rows, part);
      if (order.empty()) values.insert(values.end(), part.begin(), part.end());
      for (const int64_t i : order) values.push_back(part[static_cast<size_t>(i)]);
    }
    return Values(values);
  }

  absl::StatusOr<DeviceMatrix> Values(std::span<const float> values) {
    DeviceMatrix out{
        .element = Element::kF32, .rows = 1, .columns = static_cast<int64_t>(values.size())};
    ASSIGN_OR_RETURN(out.memory, context_.device().Allocate(values.size_bytes()));
    RETURN_IF_ERROR(context_.compute().CopyIn(out.memory->data(), std::as_bytes(values)));
    RETURN_IF_ERROR(context_.FinishCompute());  // the caller's values go
    return out;
  }

  absl::StatusOr<DeviceMatrix> Matrix(Weight weight, int layer) {
    ASSIGN_OR_RETURN(const TensorView view, Find(weight, layer));
    return Rows({{view, {}}});
  }

  absl::StatusOr<DeviceMatrix> Rows(const std::vector<Part>& parts) {
    DeviceMatrix out{.element = element_, .columns = parts[0].view.cols};
    for (const Part& part : parts) out.rows += part.view.rows;
    const int64_t row_bytes = out.columns * ElementBytes(element_);
    ASSIGN_OR_RETURN(out.memory,
                     context_.device().Allocate(static_cast<size_t>(out.rows * row_bytes)));
    std::byte* to = out.memory->data();
    const int64_t piece = std::max<int64_t>(1, kPieceElements / out.columns);
    RETURN_IF_ERROR(staging_.Reserve(context_, std::min(piece, out.rows) * row_bytes));
    for (const Part& part : parts) {
      for (int64_t begin = 0; begin < part.view.rows; begin += piece) {
        const int64_t end = std::min(part.view.rows, begin + piece);
        Decode(part, begin, end);
        const auto bytes = static_cast<size_t>((end - begin) * row_bytes);
        RETURN_IF_ERROR(context_.compute().CopyIn(to, {staging_.data(), bytes}));
        RETURN_IF_ERROR(context_.FinishCompute());  // the staging memory is used again
        to += bytes;
      }
    }
    return out;
  }

  // Rows [begin, end) of the part's order into the staging memory.
  void Decode(const Part& part, int64_t begin, int64_t end) {
    const int64_t columns = part.view.cols;
    decoded_.resize(static_cast<size_t>((end - begin) * columns));
    if (part.order.empty()) {
      model::Dequantize(part.view, begin, end, decoded_);
    } else {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t from = part.order[static_cast<size_t>(row)];
        model::Dequantize(part.view, from, from + 1,
                          std::span(decoded_).subspan(static_cast<size_t>((row - begin) * columns),
                                                      static_cast<size_t>(columns)));
      }
    }
    const auto dtype = static_cast<kv::DType>(element_);
    const int64_t bytes = ElementBytes(element_);
    for (size_t i = 0; i < decoded_.size(); ++i) {
      selector::StoreElement(decoded_[i], dtype, staging_.data() + static_cast<int64_t>(i) * bytes);
    }
  }

  const model::Model& model_;
  const Element element_;
  Context& context_;
  std::vector<float> decoded_;
  PinnedArray<std::byte> staging_;
};

}  // namespace

uint64_t DeviceWeights::Bytes(const model::Model& model, Element element) {
  const model::ModelConfig& config = model.config();
  uint64_t elements = 0;
  const auto add = [&](Weight weight, int layer) {
    const auto view = model.Find(weight, layer);
    if (view.has_value()) elements += static_cast<uint64_t>(view->rows * view->cols);
  };
  add(Weight::kEmbedding, 0);
  if (!config.tied_output) add(Weight::kOutput, 0);
  for (int l = 0; l < config.num_layers(); ++l) {
    for (const Weight weight : {Weight::kQ, Weight::kK, Weight::kV, Weight::kO, Weight::kGate,
                                Weight::kUp, Weight::kDown}) {
      add(weight, l);
    }
  }
  // Norms and biases: f32, little beside the rest.
  const auto vectors =
      static_cast<uint64_t>(config.hidden_dim) * 8 * (2 * config.layers.size() + 1);
  return elements * static_cast<uint64_t>(ElementBytes(element)) + vectors;
}

absl::StatusOr<std::unique_ptr<DeviceWeights>> DeviceWeights::Load(const model::Model& model,
                                                                   Element element,
                                                                   Context& context) {
  auto weights = std::make_unique<DeviceWeights>();
  RETURN_IF_ERROR(Loader(model, element, context).Run(*weights));
  return weights;
}

}  // namespace smartgen::executor::cuda
