// What every subcommand of the smartgen tool shares.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/config/binder.h"

namespace smartgen::tools {

using Args = std::vector<std::string>;  // without the subcommand's name

struct Command {
  std::string_view name;       // "fetch-model"
  std::string_view arguments;  // "NAME [--dir D]"
  std::string_view summary;    // one line
  int (*run)(const Args& args);
};

// In the order in which help shows them.
std::span<const Command> Commands();

int FetchModel(const Args& args);
int Run(const Args& args);
int Tokenize(const Args& args);
int Detokenize(const Args& args);
int Render(const Args& args);
int Bench(const Args& args);
int Profile(const Args& args);
int Calibrate(const Args& args);
int Trace(const Args& args);
int Up(const Args& args);
int Chat(const Args& args);
int Config(const Args& args);
int MetricsTable(const Args& args);
int Version(const Args& args);

// Parses flags as the daemons do. A value: go on, with the positional arguments. No value: --help
// was printed, or an error; return `exit_code`.
struct Parsed {
  bool go_on = false;
  int exit_code = 0;
  std::vector<std::string> positional;
};
Parsed ParseFlags(std::string_view command, const Args& args,
                  const std::function<void(config::Binder&)>& bind, size_t min_positional = 0,
                  size_t max_positional = 0);

// As above, for a command that is not in the list ("bench model").
Parsed ParseFlags(const Command& command, const Args& args,
                  const std::function<void(config::Binder&)>& bind, size_t min_positional = 0,
                  size_t max_positional = 0);

// "smartgen run: MESSAGE" on standard error; returns 1.
int Fail(std::string_view command, const absl::Status& status);

}  // namespace smartgen::tools
