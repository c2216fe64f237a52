#include "common/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <string>

namespace smartgen::base {

absl::Status InitLogging(std::string_view program, std::string_view level,
                         std::string_view format) {
  const auto parsed = spdlog::level::from_str(std::string(level));
  if (parsed == spdlog::level::off && level != "off") {
    return InvalidArgument(
        "log level: want one of trace, debug, info, warn, error, off; got \"{}\"", level);
  }
  if (format != "text" && format != "json") {
    return InvalidArgument("log format: want text or json; got \"{}\"", format);
  }
  auto logger = std::make_shared<spdlog::logger>(std::string(program),
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  // %v is not escaped by spdlog; our messages hold no quotes or control characters but for what
  // a status carries, and readers of the json format are told so in the README.
  logger->set_pattern(
      format == "json"
          ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","program":"%n","msg":"%v"})"
          : "%Y-%m-%dT%H:%M:%S.%eZ %L %n %v",
      spdlog::pattern_time_type::utc);
  logger->set_level(parsed);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

}  // namespace smartgen::base
