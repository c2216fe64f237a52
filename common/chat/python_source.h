#pragma once

namespace smartgen::chat {

// The Python side of rendering: `compile(source)` and `render(template, variables, local_seconds)`.
extern const char kPythonSource[];

}  // namespace smartgen::chat
