// Where the payload of a KV message goes: entries that are not here to their final place, those
// that are (or that another message is bringing) into memory of the message's own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/kv/sequence.h"
#include "common/transfer/wire.h"

namespace smartgen::transfer {

// Tokens [begin, end) of a layer.
struct LayerRange;

class Arrival {
 public:
  // The ranges must lie within the sequence and its layer's heads. `others`: what is being written
  // at the same time, which may be other sequences' and share pages with this.
  Arrival(std::shared_ptr<kv::KvSequence> sequence, int layer, std::vector<WireRange> ranges,
          std::span<const Arrival* const> others);

  // In the order of the wire. Empty if not one entry is missing. Good as long as this lives.
  std::vector<std::span<std::byte>> Segments();
  uint64_t payload_bytes() const { return payload_bytes_; }
  uint64_t duplicate_bytes() const { return duplicate_bytes_; }
  int layer() const { return layer_; }
  // The message's ranges, neighbours of different heads merged: what to ask for again.
  std::vector<LayerRange> ranges() const;
  // The bytes are there and right: marks the entries that were written.
  void Mark();

 private:
  // Entries that this writes; head -1: all.
  struct Piece {
    int head = -1;
    int64_t begin = 0;
    int64_t end = 0;
  };
  struct Part {
    WireRange range;
    // Entries that are not written, by token, then head of the range. Empty: all are.
    std::vector<bool> taken;
  };

  int FirstHead(const WireRange& range) const { return range.first_head; }
  int Heads(const WireRange& range) const;
  bool Writes(const kv::KvSequence& sequence, int64_t token, int head) const;
  Part Classify(const WireRange& range, std::span<const Arrival* const> others);
  void AddPieces(const Part& part);
  void AddRows(const Part& part, std::byte** scratch,
               std::vector<std::span<std::byte>>* segments) const;

  const std::shared_ptr<kv::KvSequence> sequence_;
  const int layer_;
  std::vector<Part> parts_;
  std::vector<Piece> pieces_;
  uint64_t payload_bytes_ = 0;
  uint64_t duplicate_bytes_ = 0;
  std::unique_ptr<std::byte[]> scratch_;
};

}  // namespace smartgen::transfer
