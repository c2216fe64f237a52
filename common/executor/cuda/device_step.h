// One decode step of a batch on the device, layer by layer, in a form that can be left and taken up
// again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/executor/cuda/device_forward.h"
#include "common/executor/cuda/kv_place.h"
#include "common/executor/executor.h"
#include "common/executor/shapes.h"
#include "common/executor/slot_reader.h"

namespace smartgen::executor::cuda {

// The memory of a step.
struct DeviceStepBuffers {
  DeviceActivations activations;  // of the layer's active slots, one row each, without gaps
  DeviceArray<float> rows;        // hidden states of all slots, batch x hidden
  DeviceArray<float> predicted;   // queries of the next layer
  DeviceArray<float> logits;
  DeviceArray<float> scratch;        // of decode attention
  DeviceArray<float> parts, lse;     // of jobs: [job][query heads x head dim], [job][heads]
  DeviceArray<std::byte> born;       // the tokens' KV of each layer on its way to the host
  PinnedArray<std::byte> host_born;  // the same
  PinnedArray<float> host_qkv;       // rows of the layer
  PinnedArray<float> host_parts, host_lse;
  PinnedArray<float> host_rows;  // hidden states, attended rows or logits
  Uploads uploads;               // of the step
  Uploads job_uploads;           // of jobs, until they are done
};

// What steps share. All must outlive them.
struct DeviceStepParts {
  const model::ModelConfig* config;
  Context* context;
  DeviceForward* forward;
  KvPlace* kv = nullptr;
  std::vector<std::unique_ptr<DeviceStepBuffers>> spare;  // of finished steps, for later ones
};

// Attention of jobs over KV that is local, into host memory (job.out, job.lse); waits. The jobs are
// of one layer. `buffers`: scratch, parts, lse and their host sides are used.
absl::Status RunJobs(DeviceStepParts& parts, std::span<const ReadJob> jobs,
                     DeviceStepBuffers& buffers);

// The batch has been checked.
class DeviceStep final : public StepRun {
 public:
  DeviceStep(DeviceStepParts* parts, std::span<const DecodeSlot> batch);
  ~DeviceStep() override;
  DeviceStep(const DeviceStep&) = delete;
  DeviceStep& operator=(const DeviceStep&) = delete;

  absl::StatusOr<State> Advance() override;

 private:
  enum class Phase { kStart, kLayer, kAttention, kEnd };

  absl::StatusOr<State> Run();
  absl::Status Start();
  // Makes `activations` hold the slots whose range has the layer.
  absl::Status Activate(int layer);
  absl::Status BeginLayer();
  // Slots of the layer that attend to all that they see, which is here.
  absl::Status AttendWhole(std::span<const int> rows);
  // The device's arrays that name what these rows attend to.
  absl::StatusOr<AttendSlot*> WholeSlots(std::span<const int> rows);
  // For slots with `read`: what can be known of the layer after this one.
  absl::Status LookAhead();
  // Attention to all that is here; true when it is complete.
  absl::StatusOr<bool> Attend();
  absl::Status Finish();
  // Queues copies of the active tokens' KV of the layer to the host.
  absl::Status QueueBorn();
  // What was queued is there: puts it into the sequences' pages and marks it.
  void KeepBorn();
  float* RowOf(int slot) { return buffers_->rows.data() + slot * hidden_; }
  absl::Status Annotated(const absl::Status& status, int slot) const;

  struct Born {
    int layer = 0;
    int64_t offset = 0;  // in host_born
    std::vector<int> slots;
  };

  const model::ModelConfig& config_;
  DeviceStepParts& parts_;
  Context& context_;
  KvPlace& kv_;
  const int64_t hidden_;
  std::unique_ptr<DeviceStepBuffers> buffers_;
  const std::vector<DecodeSlot> slots_;
  std::vector<std::optional<SlotReader>> readers_;  // of slots with `read`
  bool reads_ = false;                              // there is one
  Phase phase_ = Phase::kStart;
  absl::Status error_;
  int layer_ = 0;
  std::vector<int> active_;                   // slots in activations, ascending
  std::vector<std::vector<int32_t>> mapped_;  // pages of the active slots, as last mapped
  uint64_t mapped_at_ = 0;                    // evictions then
  std::vector<const int32_t*> tables_;        // the same on the device
  std::vector<ReadJob> jobs_;                 // of this layer, not run yet
  std::vector<float> attended_;               // [active slots][columns] of jobs
  std::vector<int> read_rows_;                // rows of the layer whose attention is in attended_
  std::vector<int> waiting_;                  // slots whose remote part is on its way
  std::vector<Born> born_;                    // queued, not kept yet
  int64_t born_bytes_ = 0;
};

}  // namespace smartgen::executor::cuda
