#include "tools/overrides.h"

#include <map>
#include <set>
#include <sstream>

#include "tools/process.h"

namespace smartgen::tools {
namespace {

// As the configuration compares names: case and separators do not count.
std::string Spelling(std::string_view name) {
  std::string out(name);
  for (char& c : out) {
    c = c == '.' || c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

// The flags that a daemon's --help lists.
absl::StatusOr<std::set<std::string>> KnownFlags(const std::string& program) {
  ASSIGN_OR_RETURN(const auto help, Capture({program, "--help"}));
  if (help.first != 0) return base::Internal("{} --help failed: {}", program, help.second);
  std::set<std::string> flags;
  std::istringstream lines(help.second);
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find('=');
    if (line.starts_with("  --") && equals != std::string::npos) {
      flags.insert(Spelling(std::string_view(line).substr(4, equals - 4)));
    }
  }
  return flags;
}

std::string ProgramName(const DaemonSpec& daemon) {
  return daemon.argv[0].substr(daemon.argv[0].rfind('/') + 1);
}

}  // namespace

absl::Status ApplyOverrides(const std::vector<std::string>& overrides,
                            std::vector<DaemonSpec>& daemons) {
  std::map<std::string, std::set<std::string>> known;
  for (const DaemonSpec& daemon : daemons) {
    if (overrides.empty() || known.contains(daemon.argv[0])) continue;
    ASSIGN_OR_RETURN(known[daemon.argv[0]], KnownFlags(daemon.argv[0]));
  }
  for (const std::string& text : overrides) {
    const size_t equals = text.find('=');
    if (!text.starts_with("--") || equals == std::string::npos) {
      return base::InvalidArgument("after --: want --KEY=VALUE, got \"{}\"", text);
    }
    bool taken = false;
    for (DaemonSpec& daemon : daemons) {
      std::string flag = text;
      const std::string prefix = "--" + ProgramName(daemon) + ".";
      if (flag.starts_with(prefix)) flag = "--" + flag.substr(prefix.size());
      const std::string key = flag.substr(2, flag.find('=') - 2);
      // A key meant for another daemon by name keeps that name and is not known here.
      if (!known[daemon.argv[0]].contains(Spelling(key))) continue;
      daemon.argv.push_back(std::move(flag));
      taken = true;
    }
    if (!taken) {
      return base::InvalidArgument("after --: no daemon has the flag {}", text.substr(0, equals));
    }
  }
  return absl::OkStatus();
}

}  // namespace smartgen::tools
