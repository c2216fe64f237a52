// config check: the daemon's own judgement of a file.
#include <cstdio>

#include "tools/command.h"
#include "tools/process.h"

namespace smartgen::tools {

int Config(const Args& args) {
  std::string daemon;
  const Parsed parsed = ParseFlags(
      "config", args,
      [&](config::Binder& b) {
        b.Choice("daemon", &daemon, {"prefilld", "decoded", "gateway"},
                 "whose configuration the file is");
      },
      2, 2);
  if (!parsed.go_on) return parsed.exit_code;
  if (parsed.positional[0] != "check") {
    return Fail("config", base::InvalidArgument("want: smartgen config check FILE --daemon D"));
  }
  if (daemon.empty()) {
    return Fail("config", base::InvalidArgument("want --daemon prefilld, decoded or gateway"));
  }
  const auto folder = OwnFolder();
  if (!folder.ok()) return Fail("config", folder.status());
  const auto result =
      Capture({*folder + "/" + daemon, "--config=" + parsed.positional[1], "--print-config"});
  if (!result.ok()) return Fail("config", result.status());
  std::fputs(result->second.c_str(), result->first == 0 ? stdout : stderr);
  return result->first;
}

}  // namespace smartgen::tools
