#include "common/executor/cuda/emulate.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <deque>
#include <numeric>
#include <utility>
#include <vector>

#include "common/executor/cuda/fiber.h"
#include "fmt/format.h"

namespace smartgen::executor::cuda::emulate {

thread_local const ThreadIndices* indices = nullptr;

namespace {

constexpr size_t kGuardBytes = 64;  // before and behind a shared array
constexpr uint8_t kGuardFill = 0xa5;
constexpr uint8_t kSharedFill = 0xcd;

enum class State : uint8_t { kReady, kBarrier, kWarp, kDone };
enum class WarpOp : uint8_t { kSync, kBallot, kXor, kDown, kUp, kIndex };

constexpr const char* kWarpOpNames[] = {"__syncwarp",       "__ballot_sync",  "__shfl_xor_sync",
                                        "__shfl_down_sync", "__shfl_up_sync", "__shfl_sync"};

struct Thread {
  ThreadIndices indices;
  State state = State::kReady;
  Site site{};  // where it waits
  WarpOp op = WarpOp::kSync;
  uint32_t mask = 0;
  unsigned argument = 0;
  uint64_t value = 0;  // given, then got
};

struct Shared {
  Site site{};
  size_t bytes = 0;
  std::vector<uint8_t> memory;  // guard, array, guard; room to align
  uint8_t* Data() {
    const auto at = reinterpret_cast<uintptr_t>(memory.data()) + kGuardBytes;
    return memory.data() + kGuardBytes + (16 - at % 16) % 16;
  }
};

// SplitMix64, for orders.
uint64_t NextRandom(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// Almost always the files are one string.
bool SamePlace(const Site& a, const Site& b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

// All that one host thread needs to run kernels.
class Machine {
 public:
  static Machine& OfThread() {
    thread_local Machine machine;
    return machine;
  }

  const char* Launch(const LaunchConfig& config, absl::FunctionRef<void()> kernel);
  void SetOrder(Order order, uint64_t seed) {
    order_ = order;
    random_ = seed;
  }

  // From inside a fiber.
  [[noreturn]] void Fail(Site site, std::string&& what);
  void Wait(State state, Site site);
  uint64_t WarpWait(Site site, WarpOp op, uint32_t mask, uint64_t value, unsigned argument);
  void* StaticShared(Site site, size_t bytes);
  void* DynamicShared(size_t* bytes) {
    *bytes = dynamic_.bytes;
    return dynamic_.Data();
  }

 private:
  static void Run(void* kernel) { (*static_cast<absl::FunctionRef<void()>*>(kernel))(); }
  void CheckLimits(const LaunchConfig& config);
  std::vector<uint64_t> Turns(uint64_t count);
  void RunBlock(absl::FunctionRef<void()>& kernel);
  bool RunReady(const std::vector<uint64_t>& turns);
  bool ReleaseWarps();
  bool TakePart(size_t leader);
  void Exchange(size_t first, uint32_t mask);
  bool ReleaseBarrier();
  void CheckShared(Shared& shared);
  void Allocate(Shared& shared, Site site, size_t bytes);
  std::string Where(const Thread& thread) const;
  std::string Waits(const Thread& thread) const;
  bool failed() const { return !failure_.empty(); }

  Order order_ = Order::kAscending;
  uint64_t random_ = 0;
  bool running_ = false;
  std::string failure_;
  LaunchConfig config_;
  std::deque<Fiber> fibers_;
  std::vector<Thread> threads_;  // of the block
  size_t current_ = 0;
  std::deque<Shared> static_;
  size_t static_bytes_ = 0;
  Shared dynamic_;
};

std::string Machine::Where(const Thread& thread) const {
  const ThreadIndices& at = thread.indices;
  return fmt::format("block ({}, {}, {}) thread ({}, {}, {})", at.block.x, at.block.y, at.block.z,
                     at.thread.x, at.thread.y, at.thread.z);
}

std::string Machine::Waits(const Thread& thread) const {
  const std::string at = fmt::format("{}:{}", thread.site.file, thread.site.line);
  switch (thread.state) {
    case State::kBarrier:
      return fmt::format("{} waits in __syncthreads at {}", Where(thread), at);
    case State::kWarp:
      return fmt::format("{} waits in {} with mask {:#x} at {}", Where(thread),
                         kWarpOpNames[static_cast<int>(thread.op)], thread.mask, at);
    case State::kDone:
      return fmt::format("{} has returned", Where(thread));
    case State::kReady:
      break;
  }
  return fmt::format("{} runs", Where(thread));
}

void Machine::Fail(Site site, std::string&& what) {
  failure_ = fmt::format("{}:{}: {}: {}", site.file, site.line, Where(threads_[current_]), what);
  std::string().swap(what);  // nobody will destroy it
  Fiber::Suspend();
  std::abort();  // nobody resumes a fiber of a failed block
}

void Machine::Wait(State state, Site site) {
  threads_[current_].state = state;
  threads_[current_].site = site;
  Fiber::Suspend();
}

uint64_t Machine::WarpWait(Site site, WarpOp op, uint32_t mask, uint64_t value, unsigned argument) {
  const size_t self = current_;
  const auto lane = static_cast<unsigned>(self % kWarpSize);
  if (((mask >> lane) & 1) == 0) {
    Fail(site, fmt::format("{} with mask {:#x}, which leaves out the caller's lane {}",
                           kWarpOpNames[static_cast<int>(op)], mask, lane));
  }
  Thread& thread = threads_[self];
  thread.op = op;
  thread.mask = mask;
  thread.value = value;
  thread.argument = argument;
  Wait(State::kWarp, site);
  return threads_[self].value;
}

void Machine::Allocate(Shared& shared, Site site, size_t bytes) {
  shared.site = site;
  shared.bytes = bytes;
  shared.memory.assign(bytes + 2 * kGuardBytes + 16, kGuardFill);
  std::fill_n(shared.Data(), bytes, kSharedFill);
}

void* Machine::StaticShared(Site site, size_t bytes) {
  for (Shared& shared : static_) {
    if (SamePlace(shared.site, site)) return shared.Data();
  }
  static_bytes_ += (bytes + 15) / 16 * 16;
  if (static_bytes_ > kMaxStaticShared) {
    Fail(site, fmt::format("want at most {} bytes of static shared memory, got {}",
                           kMaxStaticShared, static_bytes_));
  }
  if (static_bytes_ + config_.dynamic_shared > kMaxShared) {
    Fail(site, fmt::format("want at most {} bytes of shared memory, got {} static and {} dynamic",
                           kMaxShared, static_bytes_, config_.dynamic_shared));
  }
  Allocate(static_.emplace_back(), site, bytes);
  return static_.back().Data();
}

void Machine::CheckShared(Shared& shared) {
  const uint8_t* begin = shared.memory.data();
  const uint8_t* data = shared.Data();
  const uint8_t* end = begin + shared.memory.size();
  const auto guard = [](uint8_t byte) { return byte == kGuardFill; };
  if (std::all_of(begin, data, guard) && std::all_of(data + shared.bytes, end, guard)) return;
  failure_ =
      fmt::format("{}:{}: block ({}, {}, {}): write outside of this shared array of {} bytes",
                  shared.site.file, shared.site.line, threads_[0].indices.block.x,
                  threads_[0].indices.block.y, threads_[0].indices.block.z, shared.bytes);
}

std::vector<uint64_t> Machine::Turns(uint64_t count) {
  std::vector<uint64_t> turns(count);
  std::iota(turns.begin(), turns.end(), 0);
  if (order_ == Order::kDescending) std::reverse(turns.begin(), turns.end());
  if (order_ == Order::kShuffled) {
    for (uint64_t i = count; i > 1; --i) std::swap(turns[i - 1], turns[NextRandom(random_) % i]);
  }
  return turns;
}

void Machine::CheckLimits(const LaunchConfig& config) {
  const Dim3& g = config.grid;
  const Dim3& b = config.block;
  // The sizes of a block first one by one: their product could overflow.
  const bool block_fits = b.x > 0 && b.y > 0 && b.z > 0 && b.x <= kMaxThreads &&
                          b.y <= kMaxThreads && b.z <= 64 && b.x * b.y * b.z <= kMaxThreads;
  if (!block_fits) {
    failure_ = fmt::format("launch: want a block of 1 to {} threads (z up to 64), got {} x {} x {}",
                           kMaxThreads, b.x, b.y, b.z);
  } else if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535) {
    failure_ =
        fmt::format("launch: want a grid of 1 to 2^31 - 1 x 65535 x 65535 blocks, got {} x {} x {}",
                    g.x, g.y, g.z);
  } else if (config.dynamic_shared > kMaxShared) {
    failure_ = fmt::format("launch: want at most {} bytes of dynamic shared memory, got {}",
                           kMaxShared, config.dynamic_shared);
  }
}

const char* Machine::Launch(const LaunchConfig& config, absl::FunctionRef<void()> kernel) {
  if (running_) Fail({"launch", 0}, "a kernel launches a kernel");
  failure_.clear();
  CheckLimits(config);
  if (failed()) return failure_.c_str();
  running_ = true;
  config_ = config;
  const unsigned threads = config.block.x * config.block.y * config.block.z;
  while (fibers_.size() < threads) fibers_.emplace_back();
  threads_.assign(threads, Thread{});
  const uint64_t plane = uint64_t{config.grid.x} * config.grid.y;
  for (const uint64_t b : Turns(plane * config.grid.z)) {
    const Dim3 block{static_cast<unsigned>(b % config.grid.x),
                     static_cast<unsigned>(b / config.grid.x % config.grid.y),
                     static_cast<unsigned>(b / plane)};
    for (unsigned t = 0; t < threads; ++t) {
      const Dim3 thread{t % config.block.x, t / config.block.x % config.block.y,
                        t / (config.block.x * config.block.y)};
      threads_[t].indices = {thread, block, config.block, config.grid};
    }
    RunBlock(kernel);
    if (failed()) break;
  }
  indices = nullptr;
  running_ = false;
  return failed() ? failure_.c_str() : nullptr;
}

void Machine::RunBlock(absl::FunctionRef<void()>& kernel) {
  static_.clear();
  static_bytes_ = 0;
  Allocate(dynamic_, {"dynamic shared memory", 0}, config_.dynamic_shared);
  for (size_t t = 0; t < threads_.size(); ++t) {
    threads_[t].state = State::kReady;
    fibers_[t].Start(&Machine::Run, &kernel);
  }
  const std::vector<uint64_t> turns = Turns(threads_.size());
  while (RunReady(turns)) {
    for (Shared& shared : static_) CheckShared(shared);
    CheckShared(dynamic_);
    if (failed()) return;
    if (ReleaseWarps() || failed()) continue;
    if (!ReleaseBarrier()) return;
  }
}

// False when the block is at its end, well or not.
bool Machine::RunReady(const std::vector<uint64_t>& turns) {
  if (failed()) return false;
  bool any = false;
  for (const uint64_t t : turns) {
    if (threads_[t].state != State::kReady) continue;
    any = true;
    current_ = t;
    indices = &threads_[t].indices;
    if (!fibers_[t].Resume()) threads_[t].state = State::kDone;
    if (failed()) return false;
  }
  return any;
}

// Whether all threads that `leader` names have come to the same operation. A failure if one of them
// never can.
bool Machine::TakePart(size_t leader) {
  const Thread& self = threads_[leader];
  const size_t first = leader / kWarpSize * kWarpSize;
  bool complete = true;
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if (((self.mask >> lane) & 1) == 0) continue;
    const char* op = kWarpOpNames[static_cast<int>(self.op)];
    const size_t t = first + lane;
    const bool exists = t < threads_.size();
    if (!exists || threads_[t].state == State::kDone) {
      failure_ = fmt::format("{}:{}: {}: {} with mask {:#x} names lane {}, which {}",
                             self.site.file, self.site.line, Where(self), op, self.mask, lane,
                             exists ? "has returned" : "the block does not have");
      return false;
    }
    const Thread& other = threads_[t];
    if (other.state != State::kWarp) {
      complete = false;
    } else if (other.mask != self.mask || other.op != self.op ||
               !SamePlace(other.site, self.site)) {
      // With a mask that does not know of this thread it may come here yet.
      complete = false;
      if (((other.mask >> (leader % kWarpSize)) & 1) == 0) continue;
      failure_ = fmt::format("{}:{}: {} diverges: {}, {}", self.site.file, self.site.line, op,
                             Waits(self), Waits(other));
      return false;
    }
  }
  return complete;
}

bool Machine::ReleaseWarps() {
  bool released = false;
  for (size_t t = 0; t < threads_.size(); ++t) {
    if (threads_[t].state != State::kWarp) continue;
    const bool complete = TakePart(t);
    if (failed()) return false;
    if (!complete) continue;
    Exchange(t / kWarpSize * kWarpSize, threads_[t].mask);
    if (failed()) return false;
    released = true;
  }
  return released;
}

// Lanes of one operation get their values.
void Machine::Exchange(size_t first, uint32_t mask) {
  uint64_t given[kWarpSize] = {};
  uint32_t votes = 0;
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if (((mask >> lane) & 1) == 0) continue;
    given[lane] = threads_[first + lane].value;
    votes |= static_cast<uint32_t>(given[lane] != 0) << lane;
  }
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if (((mask >> lane) & 1) == 0) continue;
    Thread& thread = threads_[first + lane];
    thread.state = State::kReady;
    unsigned source = lane;
    switch (thread.op) {
      case WarpOp::kSync:
        continue;
      case WarpOp::kBallot:
        thread.value = votes;
        continue;
      case WarpOp::kXor:
        source = lane ^ (thread.argument % kWarpSize);
        break;
      case WarpOp::kDown:
        source = lane + thread.argument < kWarpSize ? lane + thread.argument : lane;
        break;
      case WarpOp::kUp:
        source = lane >= thread.argument ? lane - thread.argument : lane;
        break;
      case WarpOp::kIndex:
        source = thread.argument % kWarpSize;
        break;
    }
    if (((mask >> source) & 1) == 0) {
      failure_ = fmt::format("{}:{}: {}: {} reads lane {}, which mask {:#x} leaves out",
                             thread.site.file, thread.site.line, Where(thread),
                             kWarpOpNames[static_cast<int>(thread.op)], source, mask);
      return;
    }
    thread.value = given[source];
  }
}

// Nobody can run: the live threads are released if all of them wait at one barrier. False: none
// live, or a failure.
bool Machine::ReleaseBarrier() {
  const Thread* first = nullptr;
  for (const Thread& thread : threads_) {
    if (thread.state == State::kDone) continue;
    if (first == nullptr || thread.state == State::kBarrier) first = &thread;
    if (first->state == State::kBarrier) break;
  }
  if (first == nullptr) return false;
  for (const Thread& thread : threads_) {
    if (thread.state == State::kDone) continue;
    if (first->state == State::kBarrier && thread.state == State::kBarrier &&
        SamePlace(thread.site, first->site)) {
      continue;
    }
    failure_ =
        fmt::format("{}:{}: not all live threads of the block reach this: {}, {}", first->site.file,
                    first->site.line, Waits(*first),
                    &thread == first ? "and whom it waits for does not come" : Waits(thread));
    return false;
  }
  for (Thread& thread : threads_) {
    if (thread.state == State::kBarrier) thread.state = State::kReady;
  }
  return true;
}

}  // namespace

void SetOrder(Order order, uint64_t seed) { Machine::OfThread().SetOrder(order, seed); }

namespace {
std::function<void(void*, QueuedLaunch)>& Queue() {
  static std::function<void(void*, QueuedLaunch)> queue;
  return queue;
}
}  // namespace

void SetQueue(std::function<void(void* stream, QueuedLaunch launch)> queue) {
  Queue() = std::move(queue);
}

const char* LaunchOn(void* stream, QueuedLaunch launch) {
  if (Queue() == nullptr) return launch();
  Queue()(stream, std::move(launch));
  return nullptr;
}

const char* Launch(const LaunchConfig& config, absl::FunctionRef<void()> kernel) {
  return Machine::OfThread().Launch(config, kernel);
}

void Fail(Site site, std::string&& what) { Machine::OfThread().Fail(site, std::move(what)); }

void SyncThreads(Site site) { Machine::OfThread().Wait(State::kBarrier, site); }

void SyncWarp(Site site, uint32_t mask) {
  Machine::OfThread().WarpWait(site, WarpOp::kSync, mask, 0, 0);
}

uint32_t Ballot(Site site, uint32_t mask, bool predicate) {
  return static_cast<uint32_t>(
      Machine::OfThread().WarpWait(site, WarpOp::kBallot, mask, predicate ? 1 : 0, 0));
}

uint64_t ShuffleBits(Site site, ShuffleKind kind, uint32_t mask, uint64_t value,
                     unsigned argument) {
  static constexpr WarpOp kOps[] = {WarpOp::kXor, WarpOp::kDown, WarpOp::kUp, WarpOp::kIndex};
  return Machine::OfThread().WarpWait(site, kOps[static_cast<int>(kind)], mask, value, argument);
}

void* StaticShared(Site site, size_t bytes) {
  return Machine::OfThread().StaticShared(site, bytes);
}

void* DynamicShared(size_t* bytes) { return Machine::OfThread().DynamicShared(bytes); }

}  // namespace smartgen::executor::cuda::emulate
