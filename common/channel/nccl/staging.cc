#include "common/channel/nccl/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace smartgen::channel {
namespace {

// Calls copy(segment's bytes, offset in the part) for what overlaps the part.
template <typename Byte, typename Copy>
void ForEach(std::span<const std::span<Byte>> segments, uint64_t offset, size_t bytes,
             const Copy& copy) {
  size_t done = 0;
  for (const std::span<Byte> segment : segments) {
    if (done == bytes) return;
    if (offset >= segment.size()) {
      offset -= segment.size();
      continue;
    }
    const size_t count = std::min(segment.size() - offset, bytes - done);
    copy(segment.subspan(offset, count), done);
    done += count;
    offset = 0;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Staging>> Staging::Create(device::Device* device, int slots,
                                                         size_t slot_bytes) {
  std::unique_ptr<Staging> staging(new Staging);
  staging->slot_bytes_ = slot_bytes;
  for (int i = 0; i < slots; ++i) {
    auto slot = std::make_unique<Slot>();
    ASSIGN_OR_RETURN(slot->device, device->Allocate(slot_bytes));
    ASSIGN_OR_RETURN(slot->host, device->AllocatePinned(slot_bytes));
    ASSIGN_OR_RETURN(slot->event, device->CreateEvent());
    staging->free_.push_back(slot.get());
    staging->slots_.push_back(std::move(slot));
  }
  return staging;
}

Slot* Staging::Take() {
  if (free_.empty()) return nullptr;
  Slot* const slot = free_.back();
  free_.pop_back();
  return slot;
}

void Gather(std::span<const std::span<const std::byte>> segments, uint64_t offset,
            std::span<std::byte> part) {
  ForEach(segments, offset, part.size(), [&](std::span<const std::byte> from, size_t at) {
    std::memcpy(part.data() + at, from.data(), from.size());
  });
}

void Scatter(std::span<const std::byte> part, uint64_t offset,
             std::span<const std::span<std::byte>> segments) {
  ForEach(segments, offset, part.size(), [&](std::span<std::byte> to, size_t at) {
    std::memcpy(to.data(), part.data() + at, to.size());
  });
}

}  // namespace smartgen::channel
