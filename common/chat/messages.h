// What is done to a request's messages before a template sees them.
#pragma once

#include "common/base/status.h"
#include "common/chat/chat_template.h"

namespace smartgen::chat {

inline constexpr int kMaxDepth = 64;

// The template's variables out of a request: {"messages", "tools", "documents",
// "add_generation_prompt", and `extra`'s}. Keys of messages whose value is null are dropped, as
// transformers does it. Content parts are checked (only type "text" is known), and joined to one
// string if `flatten`. InvalidArgument names what is wrong, also a string that is not UTF-8 or
// nesting over kMaxDepth.
absl::StatusOr<nlohmann::ordered_json> BuildVariables(const RenderRequest& request, bool flatten);

}  // namespace smartgen::chat
