#include "common/selector/split.h"

#include <algorithm>

namespace smartgen::selector {

void SplitByMask(const Selection& selection, absl::FunctionRef<bool(int, int64_t)> is_local,
                 Split& out) {
  out.kv_heads = selection.kv_heads;
  out.k = selection.k;
  out.index.resize(static_cast<size_t>(out.kv_heads * out.k));
  out.local_count.assign(static_cast<size_t>(out.kv_heads), 0);
  out.ranges.clear();
  out.range_begin.assign(1, 0);
  out.remote_entries = 0;
  for (int h = 0; h < out.kv_heads; ++h) {
    int32_t* front = out.index.data() + h * out.k;
    int32_t* back = front + out.k;  // remote entries from the end, turned round afterwards
    for (int64_t i = 0; i < out.k; ++i) {
      const int32_t token =
          selection.dense ? static_cast<int32_t>(selection.first + i) : selection.Row(h)[i];
      if (is_local(h, token)) {
        *front++ = token;
        continue;
      }
      *--back = token;
      if (out.ranges.size() > out.range_begin.back() && out.ranges.back().end == token) {
        ++out.ranges.back().end;
      } else {
        out.ranges.push_back({token, token + 1});
      }
    }
    int32_t* row_end = out.index.data() + (h + 1) * out.k;
    std::reverse(back, row_end);
    out.remote_entries += row_end - back;
    out.local_count[h] = out.k - (row_end - back);
    out.range_begin.push_back(out.ranges.size());
  }
}

absl::Status SplitByMask(const Selection& selection, int layer, const kv::KvSequence& sequence,
                         Split& out) {
  if (selection.length > sequence.capacity()) {
    return base::InvalidArgument("split: the selection is of {} tokens, the sequence has {}",
                                 selection.length, sequence.capacity());
  }
  const kv::ResidencyMask& mask = sequence.pool()->residency();
  const std::span<const kv::PageId> pages = sequence.pages();
  int64_t nowhere = -1;
  SplitByMask(
      selection,
      [&](int head, int64_t token) {
        const kv::PageId page = pages[token / kv::kPageTokens];
        const int row = static_cast<int>(token % kv::kPageTokens);
        if (mask.HeadLocal(page, layer, head, row)) return true;
        if (mask.Get(page, layer, row) == kv::Residency::kNothing) nowhere = token;
        return false;
      },
      out);
  if (nowhere < 0) return absl::OkStatus();
  return base::FailedPrecondition("split: layer {} token {} is neither local nor remote", layer,
                                  nowhere);
}

}  // namespace smartgen::selector
