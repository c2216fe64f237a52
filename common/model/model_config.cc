#include "common/model/model_config.h"

#include <cmath>
#include <numbers>

namespace smartgen::model {
namespace {

absl::Status InRange(std::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return base::InvalidArgument("{}: want {} to {}, have {}", field, low, high, value);
}

absl::Status PositiveFinite(std::string_view field, float value) {
  if (std::isfinite(value) && value > 0) return absl::OkStatus();
  return base::InvalidArgument("{}: want a positive finite number, have {}", field, value);
}

absl::Status CheckLayer(const LayerConfig& layer, int index, int head_dim) {
  const auto field = [index](std::string_view name) {
    return fmt::format("layers[{}].{}", index, name);
  };
  RETURN_IF_ERROR(InRange(field("num_heads"), layer.num_heads, 1, kMaxHeads));
  RETURN_IF_ERROR(InRange(field("num_kv_heads"), layer.num_kv_heads, 1, kMaxHeads));
  if (layer.num_heads % layer.num_kv_heads != 0) {
    return base::InvalidArgument("{}: want a divisor of num_heads {}, have {}",
                                 field("num_kv_heads"), layer.num_heads, layer.num_kv_heads);
  }
  RETURN_IF_ERROR(InRange(field("head_dim"), layer.head_dim, 2, kMaxHeadDim));
  if (layer.head_dim % 2 != 0) {
    return base::InvalidArgument("{}: want an even number (RoPE rotates pairs), have {}",
                                 field("head_dim"), layer.head_dim);
  }
  // One table of frequencies serves all layers.
  if (layer.head_dim != head_dim) {
    return base::InvalidArgument("{}: want layer 0's {}, have {}", field("head_dim"), head_dim,
                                 layer.head_dim);
  }
  RETURN_IF_ERROR(InRange(field("num_heads * head_dim"), int64_t{layer.num_heads} * layer.head_dim,
                          1, kMaxDim));
  RETURN_IF_ERROR(InRange(field("ffn_dim"), layer.ffn_dim, 1, kMaxDim));
  return InRange(field("window"), layer.window, 0, kMaxContext);
}

absl::Status CheckRope(const RopeConfig& rope, int head_dim) {
  RETURN_IF_ERROR(PositiveFinite("rope.theta", rope.theta));
  if (!rope.frequency_divisors.empty()) {
    const size_t want = static_cast<size_t>(head_dim) / 2;
    if (rope.frequency_divisors.size() != want) {
      return base::InvalidArgument(
          "rope.frequency_divisors: want {} values (head_dim / 2), have {}", want,
          rope.frequency_divisors.size());
    }
    for (size_t i = 0; i < want; ++i) {
      RETURN_IF_ERROR(PositiveFinite(fmt::format("rope.frequency_divisors[{}]", i),
                                     rope.frequency_divisors[i]));
    }
    return absl::OkStatus();
  }
  if (rope.scaling == RopeScaling::kNone) return absl::OkStatus();
  RETURN_IF_ERROR(PositiveFinite("rope.factor", rope.factor));
  if (rope.scaling != RopeScaling::kLlama3) return absl::OkStatus();
  RETURN_IF_ERROR(PositiveFinite("rope.low_freq_factor", rope.low_freq_factor));
  RETURN_IF_ERROR(PositiveFinite("rope.high_freq_factor", rope.high_freq_factor));
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    return base::InvalidArgument(
        "rope.high_freq_factor: want more than low_freq_factor {}, have {}", rope.low_freq_factor,
        rope.high_freq_factor);
  }
  return InRange("rope.original_context", rope.original_context, 1, kMaxContext);
}

// `frequency` as Llama 3.1 scales it, by how its wavelength compares with the original context.
double ScaleLlama3(const RopeConfig& rope, double frequency) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double original = static_cast<double>(rope.original_context);
  const double low = rope.low_freq_factor;
  const double high = rope.high_freq_factor;
  if (wavelength < original / high) return frequency;
  if (wavelength > original / low) return frequency / rope.factor;
  const double smooth = (original / wavelength - low) / (high - low);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

}  // namespace

std::vector<float> ModelConfig::RopeInverseFrequencies() const {
  if (layers.empty()) return {};
  const int head_dim = layers.front().head_dim;
  std::vector<float> out(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < out.size(); ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / head_dim;
    double frequency = std::pow(static_cast<double>(rope.theta), exponent);
    if (!rope.frequency_divisors.empty()) {
      frequency /= rope.frequency_divisors[i];
    } else if (rope.scaling == RopeScaling::kLinear) {
      frequency /= rope.factor;
    } else if (rope.scaling == RopeScaling::kLlama3) {
      frequency = ScaleLlama3(rope, frequency);
    }
    out[i] = static_cast<float>(frequency);
  }
  return out;
}

absl::Status ModelConfig::Check() const {
  RETURN_IF_ERROR(InRange("hidden_dim", hidden_dim, 1, kMaxDim));
  RETURN_IF_ERROR(InRange("vocab_size", vocab_size, 1, kMaxVocab));
  RETURN_IF_ERROR(InRange("context_length", context_length, 1, kMaxContext));
  RETURN_IF_ERROR(InRange("layers", static_cast<int64_t>(layers.size()), 1, kMaxLayers));
  RETURN_IF_ERROR(PositiveFinite("norm_eps", norm_eps));
  for (int i = 0; i < num_layers(); ++i) {
    RETURN_IF_ERROR(CheckLayer(layers[static_cast<size_t>(i)], i, layers.front().head_dim));
  }
  return CheckRope(rope, layers.front().head_dim);
}

}  // namespace smartgen::model
