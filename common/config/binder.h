// Configuration: YAML file, then SMARTGEN_* environment, then flags, each overriding the one
// before.
//
// A daemon's Options is a struct whose members hold the defaults, with one function that names
// them:
//
//   struct Options {
//     std::string listen = "127.0.0.1:7100";  // gRPC address
//     int64_t kv_bytes = 4LL << 30;            // memory for KV pages
//     void Bind(config::Binder& b) {
//       b.Field("listen", &listen, "gRPC address, host:port");
//       b.Bytes("kv_bytes", &kv_bytes, "memory for KV pages");
//       b.Section("log", [&](config::Binder& s) { s.Choice("level", &log_level,
//       {"debug","info",...}, "..."); });
//     }
//   };
//
// Key a.b is environment SMARTGEN_A_B and flag --a.b=VALUE or --a.b VALUE (also --a-b; a bare
// --flag sets a bool). Lists: YAML sequences; comma-separated in environment and flags.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace smartgen::config {

class Binder {
 public:
  virtual ~Binder() = default;
  virtual void Field(std::string_view key, std::string* target, std::string_view help) = 0;
  virtual void Field(std::string_view key, bool* target, std::string_view help) = 0;
  virtual void Field(std::string_view key, int* target, std::string_view help) = 0;
  virtual void Field(std::string_view key, int64_t* target, std::string_view help) = 0;
  virtual void Field(std::string_view key, double* target, std::string_view help) = 0;
  virtual void Field(std::string_view key, std::vector<std::string>* target,
                     std::string_view help) = 0;
  // "250ms", "30s", "5m", "2h"; a bare number is an error that says so.
  virtual void Time(std::string_view key, base::Duration* target, std::string_view help) = 0;
  // "512MiB", "4GiB", "1000000" (bytes).
  virtual void Bytes(std::string_view key, int64_t* target, std::string_view help) = 0;
  virtual void Choice(std::string_view key, std::string* target, std::vector<std::string> choices,
                      std::string_view help) = 0;
  // As Field, but shown as "***" everywhere. Also read from KEY_file (its trimmed content).
  virtual void Secret(std::string_view key, std::string* target, std::string_view help) = 0;
  virtual void Section(std::string_view key, const std::function<void(Binder&)>& bind) = 0;
  // What concerns several keys: called once all sources are read, in the order given; the first
  // error ends Load. Runs for --print-config too, so that a checked configuration is a right one.
  virtual void Check(std::function<absl::Status()> check) = 0;
};

struct LoadResult {
  // --help, --version or --print-config was given: print this and exit 0.
  bool exit_now = false;
  std::string text;
  // Positional arguments (those that do not begin with --), in order.
  std::vector<std::string> positional;
};

struct Source {
  std::string program;  // "prefilld"; names the help text
  std::string about;    // one line for --help
  // The usage line of --help; empty: program and flags. A tool's subcommand sets it, and --config
  // and the environment are then left out of the text.
  std::string usage;
  std::vector<std::string> args;  // without argv[0]
  // name -> value; empty: the process's environment is read, if use_process_environment says so.
  // Unknown SMARTGEN_* names are errors, but for those in known_environment.
  std::vector<std::pair<std::string, std::string>> environment;
  bool use_process_environment = true;
  std::vector<std::string> known_environment = {"SMARTGEN_CACHE", "SMARTGEN_CONFIG",
                                                "SMARTGEN_TEST_MODEL"};
};

// Reads --config FILE (or $SMARTGEN_CONFIG), environment and flags into what `bind` names. Errors
// name the key, where it stands (file:line, environment, flag), what was expected and what came; an
// unknown key names the nearest known one. Flags that take lists append when given more than once;
// of all other flags given twice the last one counts.
absl::StatusOr<LoadResult> Load(const Source& source, const std::function<void(Binder&)>& bind);

}  // namespace smartgen::config
