// Profiles that are part of the binary: the files of deploy/profiles, put in when it is built.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/transfer/profile.h"

namespace smartgen::transfer {

// Those made for this model, the one for the default selector first: each was made with another
// selector (Origin::selector). May be empty. Thread-safe.
std::vector<Profile> BuiltInProfiles(const std::string& model_fingerprint, int layers);

// The files' bytes. Valid for ever.
std::vector<std::string_view> BuiltInProfileFiles();

}  // namespace smartgen::transfer
