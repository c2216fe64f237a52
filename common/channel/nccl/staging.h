// Where pieces lie between their owners' memory and NCCL. The device touches nothing else, so what
// hangs in it, or comes late out of it, never reaches anybody's pages.
#pragma once

#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/device/device.h"

namespace smartgen::channel {

struct Slot {
  std::unique_ptr<device::Memory> device;
  std::unique_ptr<device::Memory> host;  // pinned; as large
  std::unique_ptr<device::Event> event;  // of the last use
};

// A fixed number of slots of one size. Not thread-safe.
class Staging {
 public:
  static absl::StatusOr<std::unique_ptr<Staging>> Create(device::Device* device, int slots,
                                                         size_t slot_bytes);
  Slot* Take();  // null if none is free
  void Return(Slot* slot) { free_.push_back(slot); }
  int free() const { return static_cast<int>(free_.size()); }
  int size() const { return static_cast<int>(slots_.size()); }
  size_t slot_bytes() const { return slot_bytes_; }

 private:
  Staging() = default;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> free_;
  size_t slot_bytes_ = 0;
};

// Bytes [offset, offset + part.size()) of what `segments` are together, copied out of and into
// them.
void Gather(std::span<const std::span<const std::byte>> segments, uint64_t offset,
            std::span<std::byte> part);
void Scatter(std::span<const std::byte> part, uint64_t offset,
             std::span<const std::span<std::byte>> segments);

}  // namespace smartgen::channel
