// prefilld: runs prompts, makes token 1, sends KV.
#include <cstdio>
#include <memory>
#include <string>

#include "common/base/log.h"
#include "common/base/signals.h"
#include "common/config/binder.h"
#include "prefill_server/options.h"
#include "prefill_server/server.h"

namespace {

using smartgen::prefill_server::Options;
using smartgen::prefill_server::PrefillServer;

int Complain(const absl::Status& status) {
  std::fprintf(stderr, "prefilld: %s\n", std::string(smartgen::base::MessageOf(status)).c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  smartgen::base::BlockStopSignals();
  Options options;
  smartgen::config::Source source;
  source.program = "prefilld";
  source.about =
      "SmartGen's prefill daemon: runs prompts, makes the first token, sends the KV cache";
  source.args.assign(argv + 1, argv + argc);
  const auto loaded =
      smartgen::config::Load(source, [&](smartgen::config::Binder& b) { options.Bind(b); });
  if (!loaded.ok()) return Complain(loaded.status());
  if (loaded->exit_now) {
    std::fputs(loaded->text.c_str(), stdout);
    return 0;
  }
  if (!loaded->positional.empty()) {
    return Complain(
        smartgen::base::InvalidArgument("unexpected argument \"{}\"", loaded->positional.front()));
  }
  const absl::Status logging =
      smartgen::base::InitLogging("prefilld", options.log_level, options.log_format);
  if (!logging.ok()) return Complain(logging);
  auto server = PrefillServer::FromModel(options);
  if (!server.ok()) return Complain(server.status());
  smartgen::base::RunUntilSignal([&] {
    (*server)->Drain();
    server->reset();
  });
  return 0;
}
