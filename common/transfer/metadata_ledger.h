// Which selection metadata of one transfer was handed out, or has come: tells what repeats from
// what is new, so that it is counted once. Both ends keep one.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace smartgen::transfer {

class MetadataLedger {
 public:
  // Tokens are noted up to `capacity`, which bounds the memory whatever a peer sends.
  MetadataLedger(int layers, int64_t capacity);

  // Notes a message of `bytes` with the layer's tokens [begin, end), or with its header, and
  // returns how many of these bytes had been noted before: of tokens their share, rounded down. The
  // layer must be one of the transfer's.
  uint64_t Note(int layer, int64_t begin, int64_t end, bool header, uint64_t bytes);

 private:
  struct Layer {
    bool header = false;
    std::map<int64_t, int64_t> runs;  // begin -> end; apart from each other
  };
  int64_t capacity_;
  std::vector<Layer> layers_;
};

}  // namespace smartgen::transfer
