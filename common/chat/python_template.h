// One Jinja2 template inside the embedded Python. The interpreter starts with the first template,
// once a process, without signal handlers, and is never finalised.
//
// Thread-safe. No Python exception leaves this.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace smartgen::chat {

inline constexpr size_t kMaxTemplateSource = 1 << 20;
inline constexpr base::Duration kRenderLimit = std::chrono::seconds(5);

class PythonTemplate {
 public:
  // InvalidArgument with Jinja's message and line. `limit` bounds compiling and each render.
  static absl::StatusOr<std::unique_ptr<PythonTemplate>> Compile(
      const std::string& source, base::Duration limit = kRenderLimit);
  virtual ~PythonTemplate() = default;

  // `variables` is a JSON object. `local_seconds` is what strftime_now shows: seconds since 1970 in
  // local time. InvalidArgument carries the template's message.
  virtual absl::StatusOr<std::string> Render(const std::string& variables,
                                             int64_t local_seconds) const = 0;
};

}  // namespace smartgen::chat
