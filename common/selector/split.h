// A selection parted by where its entries are: what can be attended to at once and what must be
// fetched first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/base/status.h"
#include "common/kv/sequence.h"
#include "common/selector/selector.h"

namespace smartgen::selector {

struct TokenRange {
  int32_t begin = 0;
  int32_t end = 0;
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

struct Split {
  int kv_heads = 0;
  int64_t k = 0;
  // [kv_heads][k]: each row of the selection, local entries first, then remote ones; both parts
  // ascending.
  std::vector<int32_t> index;
  std::vector<int64_t> local_count;  // of each head
  // Remote entries, adjacent tokens merged; head h's are ranges[range_begin[h], range_begin[h +
  // 1]).
  std::vector<TokenRange> ranges;
  std::vector<size_t> range_begin;
  int64_t remote_entries = 0;  // of all heads

  std::span<const int32_t> Local(int head) const {
    return std::span<const int32_t>(index).subspan(static_cast<size_t>(head * k),
                                                   static_cast<size_t>(local_count[head]));
  }
  std::span<const int32_t> Remote(int head) const {
    return std::span<const int32_t>(index).subspan(
        static_cast<size_t>(head * k + local_count[head]),
        static_cast<size_t>(k - local_count[head]));
  }
  std::span<const TokenRange> RemoteRanges(int head) const {
    return std::span<const TokenRange>(ranges).subspan(range_begin[head],
                                                       range_begin[head + 1] - range_begin[head]);
  }
};

// `is_local(head, token)` says whether that head's entry is here. It is asked once per entry. A
// dense selection is split like one whose rows hold all visible tokens.
void SplitByMask(const Selection& selection, absl::FunctionRef<bool(int, int64_t)> is_local,
                 Split& out);

// By the residency mask of the sequence's layer, head by head (entries that arrive meanwhile may
// count as either). FailedPrecondition if a selected token is neither local nor remote (nobody has
// it).
absl::Status SplitByMask(const Selection& selection, int layer, const kv::KvSequence& sequence,
                         Split& out);

}  // namespace smartgen::selector
