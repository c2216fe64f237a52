// A model's weights on a device.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/executor/cuda/context.h"
#include "common/model/model.h"

namespace smartgen::executor::cuda {

// [rows][columns] without gaps, as model files have them; a vector has one row.
struct DeviceMatrix {
  std::unique_ptr<device::Memory> memory;
  Element element = Element::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  const void* data() const { return memory == nullptr ? nullptr : memory->data(); }
};

struct DeviceLayerWeights {
  DeviceMatrix attn_norm;
  DeviceMatrix qkv;       // rows of queries, of keys, of values; RoPE pairs (i, i + d/2)
  DeviceMatrix qkv_bias;  // empty: none
  DeviceMatrix o;
  DeviceMatrix ffn_norm;
  DeviceMatrix gate_up;  // rows of the gate, then those of up
  DeviceMatrix down;
};

// Norms and biases are f32, all else of one element type.
struct DeviceWeights {
  DeviceMatrix embedding;
  DeviceMatrix separate_output;  // empty where tied
  DeviceMatrix output_norm;
  DeviceMatrix frequencies;  // of RoPE, f32
  std::vector<DeviceLayerWeights> layers;

  const DeviceMatrix& output() const {
    return separate_output.memory == nullptr ? embedding : separate_output;
  }
  // What Load will take of the device.
  static uint64_t Bytes(const model::Model& model, Element element);
  // Reads the model only during the call, decodes in pieces. Internal names the weight that is
  // missing (Model::Open checks that all are there).
  static absl::StatusOr<std::unique_ptr<DeviceWeights>> Load(const model::Model& model,
                                                             Element element, Context& context);
};

}  // namespace smartgen::executor::cuda
