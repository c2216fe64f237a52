#include "tools/command.h"

#include <array>
#include <cstdio>

#include "common/config/version.h"
#include "common/metrics/metrics.h"

namespace smartgen::tools {
namespace {

constexpr std::array<Command, 14> kCommands = {{
    {"fetch-model", "NAME [--dir D]", "obtain a model by name and check it", FetchModel},
    {"up", "--model M [--prefill N] [--port P] [-- OVERRIDES]",
     "start prefilld, decoded and gateway on this machine", Up},
    {"chat", "--url U", "chat with a gateway in the terminal", Chat},
    {"run", "--model M --prompt-file F [--json]", "one generation in one process, no servers", Run},
    {"tokenize", "--model M [--special]", "JSON lines {\"text\"} to {\"ids\"}", Tokenize},
    {"detokenize", "--model M [--special]", "JSON lines {\"ids\"} to {\"text\"}", Detokenize},
    {"render", "--model M", "JSON lines {\"messages\"} to {\"prompt\", \"ids\"}", Render},
    {"bench", "NAME [OPTIONS]", "measure: a model's speed, time to the second token", Bench},
    {"profile", "--model M --text FILES... --out P", "measure what decode steps select", Profile},
    {"calibrate", "--model M [--peer HOST:PORT] [--out F] | show F",
     "measure this machine for the daemons' predictions", Calibrate},
    {"trace", "--prompt-file F | --request ID --decode HOST:PORT [--out F]",
     "one request over time, for ui.perfetto.dev or chrome://tracing", Trace},
    {"config", "check FILE --daemon D", "check a daemon's configuration file", Config},
    {"metrics", "", "print the metric catalogue as a table", MetricsTable},
    {"version", "", "print the version", Version},
}};

const Command* FindCommand(std::string_view name) {
  for (const Command& command : kCommands) {
    if (command.name == name) return &command;
  }
  return nullptr;
}

}  // namespace

std::span<const Command> Commands() { return kCommands; }

Parsed ParseFlags(std::string_view command, const Args& args,
                  const std::function<void(config::Binder&)>& bind, size_t min_positional,
                  size_t max_positional) {
  const Command* found = FindCommand(command);
  return ParseFlags(found != nullptr ? *found : Command{command, "", "", nullptr}, args, bind,
                    min_positional, max_positional);
}

Parsed ParseFlags(const Command& command, const Args& args,
                  const std::function<void(config::Binder&)>& bind, size_t min_positional,
                  size_t max_positional) {
  config::Source source;
  source.program = fmt::format("smartgen {}", command.name);
  source.about = std::string(command.summary);
  source.usage = fmt::format("smartgen {} {}", command.name, command.arguments);
  source.args = args;
  // SMARTGEN_* names belong to the daemons.
  source.use_process_environment = false;
  Parsed parsed;
  auto loaded = config::Load(source, bind);
  if (!loaded.ok()) {
    parsed.exit_code = Fail(command.name, loaded.status());
    return parsed;
  }
  if (loaded->exit_now) {
    std::fputs(loaded->text.c_str(), stdout);
    return parsed;
  }
  parsed.positional = std::move(loaded->positional);
  if (parsed.positional.size() < min_positional || parsed.positional.size() > max_positional) {
    parsed.exit_code =
        Fail(command.name, base::InvalidArgument("want: {}; got {} arguments that are no flags",
                                                 source.usage, parsed.positional.size()));
    return parsed;
  }
  parsed.go_on = true;
  return parsed;
}

int Fail(std::string_view command, const absl::Status& status) {
  std::fprintf(stderr, "smartgen %.*s: %s\n", static_cast<int>(command.size()), command.data(),
               std::string(base::MessageOf(status)).c_str());
  return 1;
}

int MetricsTable(const Args& args) {
  const Parsed parsed = ParseFlags("metrics", args, [](config::Binder&) {});
  if (!parsed.go_on) return parsed.exit_code;
  std::fputs(metrics::CatalogueMarkdown().c_str(), stdout);
  return 0;
}

int Version(const Args& args) {
  const Parsed parsed = ParseFlags("version", args, [](config::Binder&) {});
  if (!parsed.go_on) return parsed.exit_code;
  std::printf("smartgen %s\n", std::string(config::SoftwareVersion()).c_str());
  return 0;
}

}  // namespace smartgen::tools
