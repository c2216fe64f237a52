// Structured enough for grep, plain enough for eyes. One line an event:
//   2026-01-02T03:04:05.678Z I decoded transfer: paired peer=127.0.0.1:7101 incarnation=9f..
//
//   SMARTGEN_LOG(info, "transfer", "paired peer={} incarnation={:x}", peer, id);
//
// No request text, prompt or token ids are logged at any level.
#pragma once

#include <spdlog/spdlog.h>

#include <string_view>

#include "common/base/status.h"

namespace smartgen::base {

// Call once in main. level: trace, debug, info, warn, error, off. format: text or json. Writes to
// standard error.
absl::Status InitLogging(std::string_view program, std::string_view level, std::string_view format);

}  // namespace smartgen::base

#define SMARTGEN_LOG(level, area, format_string, ...) \
  spdlog::level(area ": " format_string __VA_OPT__(, ) __VA_ARGS__)
