// Memory that host and device reach at the same address: pinned memory of the host. With it, tests
// that were written for the emulator, whose kernels work on the host's memory, run on a device as
// they stand: their heap and their stack are put there.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "common/executor/cuda/kernels.h"

namespace smartgen::executor::cuda {

// From here on operator new gives shared memory; a process that uses it up ends with a message.
// Returns what is wrong with the current device, or nothing.
std::string ShareHeap(size_t bytes);
// Runs `body` on a thread whose stack is shared, and waits for it. ShareHeap first.
void RunOnSharedStack(const std::function<void()>& body);

// Waits for all that was launched. Null, or what went wrong (valid until the next call).
LaunchError FinishLaunches();

// Shares memory that was mapped otherwise (a KvPool's), as long as this lives.
class SharedWithDevice {
 public:
  SharedWithDevice(void* data, size_t bytes);
  ~SharedWithDevice();
  SharedWithDevice(const SharedWithDevice&) = delete;
  SharedWithDevice& operator=(const SharedWithDevice&) = delete;

 private:
  void* const data_;
};

}  // namespace smartgen::executor::cuda
