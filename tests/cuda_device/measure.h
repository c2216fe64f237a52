// What the current device does at best, for shares of it (tools/gpu_check.py).
#pragma once

namespace smartgen::executor::cuda {

// Prints one JSON object: name, what the driver says of its memory's speed, and the measured speed
// of copies and of large products. The process's exit status; what went wrong is on standard error.
int Measure();

}  // namespace smartgen::executor::cuda
