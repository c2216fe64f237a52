#include "common/channel/nccl/nccl.h"

namespace smartgen::channel {

// NCCL_VERSION_CODE since 2.9: 10000 major + 100 minor + patch.
std::string NcclVersionText(int version) {
  return fmt::format("{}.{}.{}", version / 10'000, version / 100 % 100, version % 100);
}

}  // namespace smartgen::channel
