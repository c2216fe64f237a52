#include "common/executor/cpu/weights.h"

#include "common/executor/shapes.h"

namespace smartgen::executor::cpu {
namespace {

using model::Weight;

class Loader {
 public:
  Loader(const model::Model& model, base::ThreadPool& pool, Weights* out)
      : model_(model), pool_(pool), out_(out) {}

  absl::Status Run() {
    const model::ModelConfig& config = model_.config();
    ASSIGN_OR_RETURN(const model::TensorView embedding, Find(Weight::kEmbedding, 0));
    out_->embedding = Pack({{embedding, {}}});
    out_->tied = config.tied_output;
    if (!out_->tied) {
      ASSIGN_OR_RETURN(const model::TensorView output, Find(Weight::kOutput, 0));
      out_->separate_output = Pack({{output, {}}});
    }
    ASSIGN_OR_RETURN(out_->output_norm, Vector(Weight::kOutputNorm, 0, {}));
    out_->layers.resize(config.num_layers());
    for (int l = 0; l < config.num_layers(); ++l) RETURN_IF_ERROR(Layer(l));
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<model::TensorView> Find(Weight weight, int layer) const {
    const std::optional<model::TensorView> view = model_.Find(weight, layer);
    if (view.has_value()) return *view;
    return base::Internal("layer {}: the model has no weight number {}", layer,
                          static_cast<int>(weight));
  }

  absl::StatusOr<std::vector<float>> Vector(Weight weight, int layer,
                                            const std::vector<int64_t>& order) const {
    ASSIGN_OR_RETURN(const model::TensorView view, Find(weight, layer));
    std::vector<float> values(view.rows * view.cols);
    model::Dequantize(view, 0, view.rows, values);
    if (order.empty()) return values;
    std::vector<float> ordered(order.size());
    for (size_t i = 0; i < order.size(); ++i) ordered[i] = values[order[i]];
    return ordered;
  }

  Matrix Pack(std::vector<Matrix::Part> parts) { return Matrix::Pack(parts, pool_, out_->arena); }

  absl::Status Layer(int l) {
    const model::LayerConfig& config = model_.config().layers[l];
    LayerWeights& layer = out_->layers[l];
    std::vector<int64_t> q_order, k_order;
    if (model_.config().rope.interleaved) {
      q_order = HalfSplitOrder(config.num_heads, config.head_dim);
      k_order = HalfSplitOrder(config.num_kv_heads, config.head_dim);
    }
    ASSIGN_OR_RETURN(layer.attn_norm, Vector(Weight::kAttnNorm, l, {}));
    ASSIGN_OR_RETURN(const model::TensorView q, Find(Weight::kQ, l));
    ASSIGN_OR_RETURN(const model::TensorView k, Find(Weight::kK, l));
    ASSIGN_OR_RETURN(const model::TensorView v, Find(Weight::kV, l));
    layer.qkv = Pack({{q, q_order}, {k, k_order}, {v, {}}});
    if (model_.config().qkv_bias) {
      ASSIGN_OR_RETURN(layer.qkv_bias, Vector(Weight::kQBias, l, q_order));
      ASSIGN_OR_RETURN(const std::vector<float> k_bias, Vector(Weight::kKBias, l, k_order));
      ASSIGN_OR_RETURN(const std::vector<float> v_bias, Vector(Weight::kVBias, l, {}));
      layer.qkv_bias.insert(layer.qkv_bias.end(), k_bias.begin(), k_bias.end());
      layer.qkv_bias.insert(layer.qkv_bias.end(), v_bias.begin(), v_bias.end());
    }
    ASSIGN_OR_RETURN(const model::TensorView o, Find(Weight::kO, l));
    layer.o = Pack({{o, {}}});
    ASSIGN_OR_RETURN(layer.ffn_norm, Vector(Weight::kFfnNorm, l, {}));
    ASSIGN_OR_RETURN(const model::TensorView gate, Find(Weight::kGate, l));
    ASSIGN_OR_RETURN(const model::TensorView up, Find(Weight::kUp, l));
    layer.gate_up = Matrix::PackPairs({gate, {}}, {up, {}}, pool_, out_->arena);
    ASSIGN_OR_RETURN(const model::TensorView down, Find(Weight::kDown, l));
    layer.down = Pack({{down, {}}});
    return absl::OkStatus();
  }

  const model::Model& model_;
  base::ThreadPool& pool_;
  Weights* out_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Weights>> Weights::Load(const model::Model& model,
                                                       base::ThreadPool& pool) {
  auto weights = std::make_unique<Weights>();
  RETURN_IF_ERROR(Loader(model, pool, weights.get()).Run());
  return weights;
}

absl::Status Weights::AddFast(GemmType type, base::ThreadPool& pool) {
  for (LayerWeights& layer : layers) {
    for (Matrix* matrix : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      RETURN_IF_ERROR(matrix->AddFast(type, pool));
    }
  }
  return absl::OkStatus();
}

}  // namespace smartgen::executor::cpu
