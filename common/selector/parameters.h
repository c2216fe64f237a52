// A model's selector parameters from files, as `smartgen profile` writes them.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "common/selector/selector.h"

namespace smartgen::selector {

// Their names in a folder.
inline constexpr const char* kSkewFile = "skew.sgmx";
inline constexpr const char* kHashFile = "hash.sgmx";

// `path`: empty for none at all; one such file of either purpose, or a folder with one or both
// under the names above. What is there is checked against the model: FailedPrecondition if made for
// another one, InvalidArgument or DataLoss for damage, NotFound where there is nothing. `options`
// gives the layers that need none and the length of a hash code.
absl::StatusOr<Parameters> LoadParameters(const std::string& path,
                                          const std::string& model_fingerprint,
                                          const kv::KvLayout& layout, const Options& options);

// Names the values: equal on both sides of a transfer or the metadata of one means nothing to the
// other. 0: no parameters.
uint64_t DigestOf(const Parameters& parameters);

}  // namespace smartgen::selector
