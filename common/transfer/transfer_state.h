// What of one transfer is ready, what was handed out, and what is next: the sender's books, without
// network, clock or lock. A byte a (layer, token); a side map for tokens of which some KV heads
// went alone.
//
// An entry is (layer, token, KV head). For each token of a layer:
//   nothing --SetReady, Born--> ready --TakeNext, Fetch--> handed out (all heads)
//                                 \--Fetch of some heads--> partly --Fetch, TakeNext--> handed out
// Handed out is final; Fetch(again) and Resend repeat such entries and change nothing.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/kv/layout.h"
#include "common/kv/remote_kv.h"
#include "common/transfer/plan.h"
#include "common/transfer/wire.h"

namespace smartgen::transfer {

// Entries of one layer that go out in one message.
struct Take {
  int layer = 0;
  std::vector<WireRange> ranges;
  int64_t bytes = 0;
  int64_t prompt_bytes = 0;    // of these: of prompt tokens, for the first time
  int64_t repeated_bytes = 0;  // of these: handed out before
};

class TransferState {
 public:
  struct Options {
    int64_t begin = 0;  // prompt tokens that travel
    int64_t end = 0;
    int64_t capacity = 0;  // born tokens end here
    // As in SendSpec; blocks over `end` tokens. What it does not name follows, layer by layer.
    std::vector<BlockId> order;
    int64_t pushed = -1;
    bool deliver_rest = true;
    // A message carries at most so much payload, but for a single token's.
    int64_t max_message_bytes = 0;
  };
  // InvalidArgument if `order` names a block that there is not, or one twice.
  static absl::Status CheckOrder(std::span<const BlockId> order, int layers);
  TransferState(const kv::KvLayout& layout, Options options);

  // Tokens [begin, end) of a layer are final; those outside of the transfer's are ignored.
  void SetReady(int layer, int64_t begin, int64_t end);
  void PromptDone();
  bool prompt_done() const { return prompt_done_; }
  // Token >= end was born in this layer. Not empty: it goes at once; else in its turn. A token that
  // was born before changes nothing.
  std::vector<Take> Born(int layer, int64_t token);

  // Bytes of the token whose turn it is; 0: nothing may go now.
  int64_t NextBytes();
  // Hands out what is next, in order, up to `max_bytes`, but at least one token if there is one.
  std::vector<Take> TakeNext(int64_t max_bytes);
  // Hands out entries now, ready ones only. `head` -1: all heads. Those handed out before are left
  // out, or repeated if `again`.
  std::vector<Take> Fetch(int layer, std::span<const kv::HeadRange> ranges, bool again);
  // Repeats what was handed out of tokens [begin, end).
  std::vector<Take> Resend(int layer, int64_t begin, int64_t end);

  // Payload of the prompt's tokens that travel (of a layer with a sliding window: TravelBegin), all
  // layers: the sum of all Take::prompt_bytes in the end.
  int64_t prompt_bytes() const { return prompt_bytes_; }

 private:
  enum Flag : uint8_t { kReady = 1, kPartly = 2, kHandedOut = 4 };
  using Mask = uint64_t;  // a bit a unit
  struct Layer {
    std::vector<uint8_t> tokens;        // flags, from options_.begin on; grows as tokens are born
    int64_t begin = 0;                  // the first prompt token that travels
    int64_t left = 0;                   // prompt tokens not handed out
    int64_t born_left = 0;              // born and not handed out
    std::vector<int64_t> born_waiting;  // for the prompt's tokens; in the order of their birth
    // What is handed out on its own: a KV head; in layers of more than 64, all heads at once.
    int units = 0;
    int64_t unit_bytes = 0;  // of one token
  };
  class Gatherer;

  uint8_t& Flags(int layer, int64_t token) {
    return layers_[layer].tokens[static_cast<size_t>(token - options_.begin)];
  }
  uint8_t Flags(int layer, int64_t token) const {
    return layers_[layer].tokens[static_cast<size_t>(token - options_.begin)];
  }
  // The end of the tokens that have flags: the prompt's, and those that were born.
  int64_t KnownEnd(int layer) const {
    return options_.begin + static_cast<int64_t>(layers_[layer].tokens.size());
  }
  // Units of a token that were handed out.
  Mask Given(int layer, int64_t token) const;
  Mask All(int layer) const;
  // Marks units as handed out.
  void Give(int layer, int64_t token, Mask units);
  // The layer's prompt tokens are all handed out: its born tokens are next.
  void OnLayerGiven(int layer);
  // The tokens of the block that travel.
  TokenRange Tokens(const BlockId& id) const;
  BlockId BlockAt(uint32_t rank) const;
  // The first token of the first ready block (of those that may go now) that was not handed out;
  // false: none. Drops blocks that are through.
  bool FindNext(int* layer, int64_t* token, int64_t* block_end);
  // Of the token: what was not handed out.
  int64_t BytesLeft(int layer, int64_t token) const;

  Options options_;
  std::vector<Layer> layers_;
  std::vector<BlockId> order_;     // by rank; empty: rank = layer * kBlocks + block
  std::vector<uint32_t> rank_;     // by layer * kBlocks + block; empty likewise
  std::vector<uint16_t> unready_;  // by layer * kBlocks + block: tokens that travel, not ready
  std::vector<uint32_t> ready_;    // a heap of ranks, the smallest first
  std::deque<std::pair<int, int64_t>> born_ready_;  // (layer, token) whose turn has come
  std::unordered_map<uint64_t, Mask> partly_;       // by layer << 32 | token
  uint64_t limit_ = 0;                              // ranks below may go now
  bool prompt_done_ = false;
  int64_t prompt_bytes_ = 0;
};

}  // namespace smartgen::transfer
