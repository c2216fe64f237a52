// Checks the `messages` and `tools` of a chat request before a template sees them.
#pragma once

#include "gateway/openai/error.h"
#include "gateway/openai/fields.h"

namespace smartgen::gateway {

// Array of {"role", "content", ...}: known roles, content a string, a list of text parts, or null
// where an assistant calls tools. Errors go to `reader` and name the element ("messages[2].role").
Json ReadMessages(FieldReader& reader);
// Array of {"type": "function", "function": {"name", ...}}; parameters may be missing. Null if
// there are none.
Json ReadTools(FieldReader& reader);

}  // namespace smartgen::gateway
