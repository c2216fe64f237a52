// What SmartGen needs of an accelerator's runtime, and nothing else: memory, streams, events and
// copies of one device. cuda_device.cc is the CUDA runtime behind it; tests put a double there that
// is strict about the rules below (tests/fakes/fake_device.h).
//
// Work that is queued on a stream runs in order, some time later, and errors of it show up at any
// later call: Internal then, from every call, for ever (a CUDA context does not recover; the
// process must be started anew). Thread-safe, but for a Stream, which one thread uses at a time.
//
// Everything must be destroyed before its Device. Destroying memory, streams and events does not
// wait: what is still queued must not use them (the double checks it).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace smartgen::device {

struct DeviceInfo {
  int index = 0;
  std::string name;  // "NVIDIA H200"
  std::string uuid;  // the same in every process
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;  // when asked
};

// A block of memory. Aligned to 256 bytes.
class Memory {
 public:
  virtual ~Memory() = default;
  std::byte* data() const { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }
  std::span<std::byte> bytes() const { return bytes_; }

 protected:
  std::span<std::byte> bytes_;
};

// A point in a stream's work.
class Event {
 public:
  virtual ~Event() = default;
};

class Stream {
 public:
  virtual ~Stream() = default;
  // Queued, not waited for: both sides must stay until an event recorded after it was reached. Host
  // memory should be pinned, or the call may wait for the copy. `to` (CopyIn) and `from` (CopyOut)
  // are device memory.
  virtual absl::Status CopyIn(std::byte* to, std::span<const std::byte> from) = 0;
  virtual absl::Status CopyOut(std::span<std::byte> to, const std::byte* from) = 0;
  // The event stands for what has been queued so far; a new Record moves it.
  virtual absl::Status Record(Event& event) = 0;
  // What is queued from here on runs after what the event stood for when this was called.
  virtual absl::Status Wait(Event& event) = 0;
  // A cudaStream_t, for kernels and libraries.
  virtual void* native() const = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceInfo info() const = 0;
  // ResourceExhausted says how much was asked for and how much is free.
  virtual absl::StatusOr<std::unique_ptr<Memory>> Allocate(size_t bytes) = 0;
  // Of the host, where the device reads and writes without a copy between.
  virtual absl::StatusOr<std::unique_ptr<Memory>> AllocatePinned(size_t bytes) = 0;
  // Not ordered with any other stream.
  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream() = 0;
  virtual absl::StatusOr<std::unique_ptr<Event>> CreateEvent() = 0;
  // Whether what the event stands for is done. True for one that was never recorded. Does not wait.
  virtual absl::StatusOr<bool> Reached(const Event& event) = 0;
  // For libraries that work on the calling thread's device.
  virtual absl::Status MakeCurrent() = 0;
};

// The devices of this machine; empty without any. FailedPrecondition if this build has no CUDA.
absl::StatusOr<std::vector<DeviceInfo>> ListDevices();
// NotFound names the devices that there are. FailedPrecondition if this build has no CUDA.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(int index);

}  // namespace smartgen::device
