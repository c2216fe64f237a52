// What `smartgen profile NAME` runs; each takes the arguments after its name.
#pragma once

#include "tools/command.h"

namespace smartgen::tools::profile {

int Make(const Args& args);  // no name
int Show(const Args& args);
int Similarity(const Args& args);
int Miss(const Args& args);

}  // namespace smartgen::tools::profile
