// Failures are values: absl::Status everywhere, no exceptions across our own interfaces.
//
//   ASSIGN_OR_RETURN(auto file, OpenGguf(path));
//   RETURN_IF_ERROR(file->Check());
//   return base::InvalidArgument("tensor {}: want {}, file has {}", name, want, have);
//
// A message says what was expected, what came and where. Messages are formatted with fmt, which
// understands std::string_view (Debian's absl::string_view is a type of its own).
#pragma once

#include <spdlog/fmt/fmt.h>

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace smartgen::base {

inline absl::Status MakeStatus(absl::StatusCode code, std::string_view message) {
  return absl::Status(code, absl::string_view(message.data(), message.size()));
}

inline std::string_view MessageOf(const absl::Status& status) {
  return std::string_view(status.message().data(), status.message().size());
}

// The same status with `context` ("reading model.gguf") put before its message.
inline absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  return MakeStatus(status.code(), fmt::format("{}: {}", context, MessageOf(status)));
}

#define SMARTGEN_DEFINE_STATUS_MAKER(Name, Code)                                                 \
  template <typename... Args>                                                                    \
  absl::Status Name(fmt::format_string<Args...> format, Args&&... args) {                        \
    return MakeStatus(absl::StatusCode::Code, fmt::format(format, std::forward<Args>(args)...)); \
  }
SMARTGEN_DEFINE_STATUS_MAKER(InvalidArgument, kInvalidArgument)
SMARTGEN_DEFINE_STATUS_MAKER(NotFound, kNotFound)
SMARTGEN_DEFINE_STATUS_MAKER(AlreadyExists, kAlreadyExists)
SMARTGEN_DEFINE_STATUS_MAKER(OutOfRange, kOutOfRange)
SMARTGEN_DEFINE_STATUS_MAKER(ResourceExhausted, kResourceExhausted)
SMARTGEN_DEFINE_STATUS_MAKER(FailedPrecondition, kFailedPrecondition)
SMARTGEN_DEFINE_STATUS_MAKER(Unavailable, kUnavailable)
SMARTGEN_DEFINE_STATUS_MAKER(DeadlineExceeded, kDeadlineExceeded)
SMARTGEN_DEFINE_STATUS_MAKER(Cancelled, kCancelled)
SMARTGEN_DEFINE_STATUS_MAKER(Aborted, kAborted)
SMARTGEN_DEFINE_STATUS_MAKER(DataLoss, kDataLoss)
SMARTGEN_DEFINE_STATUS_MAKER(Unimplemented, kUnimplemented)
SMARTGEN_DEFINE_STATUS_MAKER(Internal, kInternal)
SMARTGEN_DEFINE_STATUS_MAKER(Unauthenticated, kUnauthenticated)
#undef SMARTGEN_DEFINE_STATUS_MAKER

}  // namespace smartgen::base

#define SMARTGEN_CONCAT_INNER(a, b) a##b
#define SMARTGEN_CONCAT(a, b) SMARTGEN_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expr)                          \
  do {                                                 \
    absl::Status smartgen_status = (expr);             \
    if (!smartgen_status.ok()) return smartgen_status; \
  } while (false)

#define ASSIGN_OR_RETURN(lhs, expr) \
  SMARTGEN_ASSIGN_OR_RETURN(SMARTGEN_CONCAT(smartgen_or_, __LINE__), lhs, expr)
#define SMARTGEN_ASSIGN_OR_RETURN(tmp, lhs, expr) \
  auto tmp = (expr);                              \
  if (!tmp.ok()) return tmp.status();             \
  lhs = std::move(tmp).value()
