// The benchmarks that `smartgen bench NAME` runs; each takes the arguments after its name.
#pragma once

#include "tools/command.h"

namespace smartgen::tools::bench {

int Model(const Args& args);
int Ttst(const Args& args);
int Crossover(const Args& args);
int Quality(const Args& args);
// bench crossover with --calibration: predicted, no daemon runs.
bool AsksForForecast(const Args& args);
int CrossoverForecast(const Args& args);

}  // namespace smartgen::tools::bench
