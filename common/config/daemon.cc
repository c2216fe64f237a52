#include "common/config/daemon.h"

#include <cstdio>
#include <string>

namespace smartgen::config {

int Complain(std::string_view program, const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", std::string(program).c_str(),
               std::string(base::MessageOf(status)).c_str());
  return 1;
}

std::optional<int> LoadDaemonOptions(std::string_view program, std::string_view about, int argc,
                                     char** argv, const std::function<void(Binder&)>& bind) {
  Source source;
  source.program = program;
  source.about = about;
  source.args.assign(argv + 1, argv + argc);
  const auto loaded = Load(source, bind);
  if (!loaded.ok()) return Complain(program, loaded.status());
  if (loaded->exit_now) {
    std::fputs(loaded->text.c_str(), stdout);
    return 0;
  }
  if (!loaded->positional.empty()) {
    return Complain(
        program, base::InvalidArgument("unexpected argument \"{}\"", loaded->positional.front()));
  }
  return std::nullopt;
}

}  // namespace smartgen::config
