// Where kernels find the KV of sequences: a copy on the device, or the host's pool itself.
//
// One thread uses it; what it queues goes to the context's compute stream, so that work that is
// queued there afterwards sees it.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/executor/cuda/context.h"
#include "common/kv/sequence.h"

namespace smartgen::executor::cuda {

class KvPlace {
 public:
  virtual ~KvPlace() = default;
  // Kernels write to the sequences' own pages: there is nothing to copy to the host.
  virtual bool in_host_memory() const = 0;
  // How often a page has lost its number since the beginning: what Map gave before is valid while
  // this is the same.
  virtual uint64_t evictions() const = 0;
  // Begins a piece of work: what it maps stays mapped until the next Begin.
  virtual void Begin() = 0;
  // Numbers of the sequence's pages that hold tokens [0, end), for PagedLayer::pages.
  // ResourceExhausted if not all that was mapped since Begin can be there at once.
  virtual absl::StatusOr<std::vector<int32_t>> Map(kv::KvSequence& sequence, int64_t end) = 0;
  // Without `pages`. The pool is that of the sequence.
  virtual PagedLayer Layer(const kv::KvSequence& sequence, int layer) const = 0;
  // In what follows `pages` are those of Map. Tokens [begin, end) of the layer, all local, can be
  // read by what is queued after Flush. Between the two calls of no other kind may come.
  virtual absl::Status Bring(kv::KvSequence& sequence, std::span<const int32_t> pages, int layer,
                             int64_t begin, int64_t end) = 0;
  // Tokens of one head.
  virtual absl::Status Bring(kv::KvSequence& sequence, std::span<const int32_t> pages, int layer,
                             int head, std::span<const int32_t> tokens) = 0;
  // After the last Bring: the small pieces go together. An error means that none of them is there.
  virtual absl::Status Flush() = 0;
  // Queued work writes these tokens, all heads.
  virtual void Written(std::span<const int32_t> pages, int layer, int64_t begin, int64_t end) = 0;
  // What was written of the token counts no more: it may be made elsewhere.
  virtual void Forget(kv::KvSequence& sequence, int64_t token) = 0;
};

// Of one pool at a time that was made of this memory.
std::unique_ptr<KvPlace> NewHostKv(const kv::PageMemory* memory);
// Of sequences of this layout, in at most so many bytes of the device. ResourceExhausted says what
// one page takes if there is no room for one.
absl::StatusOr<std::unique_ptr<KvPlace>> NewDeviceKv(Context* context, const kv::KvLayout& layout,
                                                     uint64_t bytes);

}  // namespace smartgen::executor::cuda
