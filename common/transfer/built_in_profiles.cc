#include "common/transfer/built_in_profiles.h"

#include <algorithm>
#include <utility>

#include "common/transfer/request_options.h"

namespace smartgen::transfer {

std::vector<Profile> BuiltInProfiles(const std::string& model_fingerprint, int layers) {
  std::vector<Profile> profiles;
  for (const std::string_view bytes : BuiltInProfileFiles()) {
    auto profile = Profile::Parse(bytes, "built in");
    if (profile.ok() && profile->CheckFor(model_fingerprint, layers).ok()) {
      profiles.push_back(std::move(*profile));
    }
  }
  const std::string first = RequestOptions{}.selector;
  std::stable_partition(profiles.begin(), profiles.end(),
                        [&](const Profile& profile) { return profile.origin().selector == first; });
  return profiles;
}

}  // namespace smartgen::transfer
