// smartgen: one tool for what is not a daemon's work.
#include <cstdio>

#include "common/base/log.h"
#include "tools/command.h"

namespace smartgen::tools {
namespace {

int Help() {
  std::printf("smartgen: disaggregated serving of language models\n\nCommands:\n");
  for (const Command& command : Commands()) {
    std::printf("  %-12s %s\n", std::string(command.name).c_str(),
                std::string(command.summary).c_str());
  }
  std::printf("\n\"smartgen help COMMAND\" shows a command's arguments.\n");
  return 0;
}

int Main(Args args) {
  // On standard error: standard output is the commands' own.
  const absl::Status logging = base::InitLogging("smartgen", "warn", "text");
  if (!logging.ok()) return Fail("", logging);
  if (args.empty() || args[0] == "--help" || args[0] == "-h") return Help();
  if (args[0] == "--version") args[0] = "version";
  if (args[0] == "help") {
    if (args.size() == 1) return Help();
    args = {args[1], "--help"};
  }
  for (const Command& command : Commands()) {
    if (command.name == args[0]) return command.run(Args(args.begin() + 1, args.end()));
  }
  std::fprintf(stderr, "smartgen: no command \"%s\"; \"smartgen help\" lists them\n",
               args[0].c_str());
  return 2;
}

}  // namespace
}  // namespace smartgen::tools

int main(int argc, char** argv) {
  return smartgen::tools::Main(smartgen::tools::Args(argv + 1, argv + argc));
}
