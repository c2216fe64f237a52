// bench: measurements by name.
#include <array>
#include <cstdio>

#include "tools/bench/benchmarks.h"
#include "tools/command.h"

namespace smartgen::tools {
namespace {

constexpr std::array<Command, 4> kBenchmarks = {{
    {"model", "", "prefill and decode speed of a model on this machine", bench::Model},
    {"ttst", "", "time to the second token over a link as slow as wanted, mode by mode",
     bench::Ttst},
    {"crossover", "", "from which bandwidth on a prefill machine pays", bench::Crossover},
    {"quality", "", "what selecting KV costs in quality, selector by selector", bench::Quality},
}};

void Help() {
  std::printf("smartgen bench NAME [OPTIONS]\n\nBenchmarks:\n");
  for (const Command& benchmark : kBenchmarks) {
    std::printf("  %-12s %s\n", std::string(benchmark.name).c_str(),
                std::string(benchmark.summary).c_str());
  }
  std::printf("\n\"smartgen bench NAME --help\" shows a benchmark's options.\n");
}

}  // namespace

int Bench(const Args& args) {
  if (!args.empty() && (args[0] == "--help" || args[0] == "-h")) {
    Help();
    return 0;
  }
  std::string names;
  for (const Command& benchmark : kBenchmarks) {
    if (!args.empty() && benchmark.name == args[0]) {
      return benchmark.run(Args(args.begin() + 1, args.end()));
    }
    names += (names.empty() ? "" : ", ") + std::string(benchmark.name);
  }
  return Fail("bench", args.empty()
                           ? base::InvalidArgument("want a benchmark's name: {}", names)
                           : base::InvalidArgument("no benchmark is called \"{}\"; there are: {}",
                                                   args[0], names));
}

}  // namespace smartgen::tools
