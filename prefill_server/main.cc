// prefilld: runs prompts, makes token 1, sends KV.
#include "common/config/daemon.h"
#include "prefill_server/options.h"
#include "prefill_server/server.h"

int main(int argc, char** argv) {
  using namespace smartgen::prefill_server;
  return smartgen::config::RunDaemon<Options, PrefillServer>(
      "prefilld",
      "SmartGen's prefill daemon: runs prompts, makes the first token, sends the KV cache", argc,
      argv);
}
