// decoded: receives KV, generates tokens.
#include <cstdio>
#include <memory>
#include <string>

#include "common/base/log.h"
#include "common/base/signals.h"
#include "common/config/binder.h"
#include "decode_server/options.h"
#include "decode_server/server.h"

namespace {

using smartgen::decode_server::DecodeServer;
using smartgen::decode_server::Options;

int Complain(const absl::Status& status) {
  std::fprintf(stderr, "decoded: %s\n", std::string(smartgen::base::MessageOf(status)).c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  smartgen::base::BlockStopSignals();
  Options options;
  smartgen::config::Source source;
  source.program = "decoded";
  source.about = "SmartGen's decode daemon: owns requests, receives the KV cache, generates tokens";
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
      smartgen::base::InitLogging("decoded", options.log_level, options.log_format);
  if (!logging.ok()) return Complain(logging);
  auto server = DecodeServer::FromModel(options);
  if (!server.ok()) return Complain(server.status());
  smartgen::base::RunUntilSignal([&] {
    (*server)->Drain();
    server->reset();
  });
  return 0;
}
