#include "common/transfer/built_in_profiles.h"

#include <utility>

namespace smartgen::transfer {

std::optional<Profile> BuiltInProfile(const std::string& model_fingerprint, int layers) {
  for (const std::string_view bytes : BuiltInProfileFiles()) {
    auto profile = Profile::Parse(bytes, "built in");
    if (profile.ok() && profile->CheckFor(model_fingerprint, layers).ok()) {
      return std::move(*profile);
    }
  }
  return std::nullopt;
}

}  // namespace smartgen::transfer
