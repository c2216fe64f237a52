#include "common/base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <iterator>
#include <memory>
#include <string>
#include <utility>

namespace smartgen::base {
namespace {

// The message as the inside of a JSON string.
class JsonMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    for (const char c : message.payload) {
      if (c == '"' || c == '\\') {
        out.push_back('\\');
        out.push_back(c);
      } else if (static_cast<unsigned char>(c) < 0x20) {
        fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
      } else {
        out.push_back(c);
      }
    }
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JsonMessage>();
  }
};

}  // namespace

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
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  formatter->add_flag<JsonMessage>('*').set_pattern(
      format == "json"
          ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","program":"%n","msg":"%*"})"
          : "%Y-%m-%dT%H:%M:%S.%eZ %L %n %v");
  logger->set_formatter(std::move(formatter));
  logger->set_level(parsed);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

}  // namespace smartgen::base
