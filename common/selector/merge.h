// Attention over disjoint key sets, put together exactly from the parts by their
// log-sum-exp: m = max(s1, s2), a = e^(s1 - m), b = e^(s2 - m), v = (a v1 + b v2) / (a + b),
// s = m + log(a + b).
#pragma once

#include <span>

namespace smartgen::selector {

// (v, s) becomes the merge of (v, s) and (other_v, other_s): v is a softmax-weighted mean of
// values, s the natural log of its sum of e^score; s = -infinity is an empty side, whose v is not
// looked at. Both empty: v = 0, s = -infinity. The spans are equally long and do not overlap.
void MergePartial(std::span<float> v, float& s, std::span<const float> other_v, float other_s);

}  // namespace smartgen::selector
