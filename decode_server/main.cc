// decoded: receives KV, generates tokens.
#include "common/config/daemon.h"
#include "decode_server/options.h"
#include "decode_server/server.h"

int main(int argc, char** argv) {
  using namespace smartgen::decode_server;
  return smartgen::config::RunDaemon<Options, DecodeServer>(
      "decoded", "SmartGen's decode daemon: owns requests, receives the KV cache, generates tokens",
      argc, argv);
}
