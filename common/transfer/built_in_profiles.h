// Profiles that are part of the binary: the files of deploy/profiles, put in when it is built.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/transfer/profile.h"

namespace smartgen::transfer {

// The one made for this model; none: nullopt. Thread-safe.
std::optional<Profile> BuiltInProfile(const std::string& model_fingerprint, int layers);

// The files' bytes. Valid for ever.
std::vector<std::string_view> BuiltInProfileFiles();

}  // namespace smartgen::transfer
