// What an executor asks when a layer's KV is not all here.
//
// Two ways: fetch entries (they are written to their final place and marked, so that afterwards
// they are read like all others), or let the side that holds them attend to them and send what came
// out.
//
// One object a sequence, called by one thread (the engine's). No call blocks on the network; an
// error is final for the step that gets it.
#pragma once

#include <cstdint>
#include <span>

#include "common/base/status.h"

namespace smartgen::kv {

// Tokens [begin, end) of one KV head.
struct HeadRange {
  int head = 0;
  int64_t begin = 0;
  int64_t end = 0;
  friend bool operator==(const HeadRange&, const HeadRange&) = default;
};

class RemoteKv {
 public:
  virtual ~RemoteKv() = default;

  // Asks for entries of a layer; returns at once. What is on its way already is waited for, not
  // asked for twice. Ranges ascend in each head and are disjoint.
  virtual absl::Status Fetch(int layer, std::span<const HeadRange> ranges) = 0;
  // True when everything that Fetch asked for of this layer is here (HeadLocal); false: not yet; an
  // error: it never will be.
  virtual absl::StatusOr<bool> Fetched(int layer) = 0;

  // Query shipping: the other side attends with `queries` ([query heads][head dim], after RoPE, not
  // scaled) over tokens [begin, end) of the layer. One question a layer and step. The values are
  // copied before it returns.
  virtual absl::Status Attend(int layer, int64_t begin, int64_t end,
                              std::span<const float> queries) = 0;
  // True when the answer is here: out [query heads][head dim], the softmax-weighted mean of values;
  // lse [query heads], the natural log of the sum of e^score.
  virtual absl::StatusOr<bool> Attended(int layer, std::span<float> out, std::span<float> lse) = 0;
};

}  // namespace smartgen::kv
