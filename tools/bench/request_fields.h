// Fields of protocol messages by name: what a newer protocol adds can be set and is reported
// without a change here.
#pragma once

#include <google/protobuf/message.h>

#include <map>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace smartgen::tools::bench {

// The names of the fields of `request`'s transfer options: the message field that is called
// "transfer" or "transfer_options". None: empty.
std::vector<std::string> OptionNames(const google::protobuf::Descriptor& request);

// Sets an option of a request from text. Numbers, booleans (true, false, on, off), texts, and
// enums by the last part of their value's name in lower case ("quest" for SELECTOR_QUEST).
// InvalidArgument: no such option, or a value that it does not take; names what there is.
absl::Status SetOption(google::protobuf::Message& request, const std::string& name,
                       const std::string& value);

}  // namespace smartgen::tools::bench
