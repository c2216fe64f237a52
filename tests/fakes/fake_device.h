// A device without a device: streams are threads, its memory is the host's. Strict about the rules
// of device.h: work on memory that is not the device's, memory freed while queued work uses it, and
// streams destroyed with work that never ends fail the test.
//
// Two temperaments. kSerial: one piece of work at a time, in the order of issue, whatever stream it
// is on: finds programs that rely on two streams to progress apart. kLoose: streams run apart, each
// piece of work after a random pause: finds programs that forgot to wait for an event.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "common/device/device.h"

namespace smartgen::fakes {

class FakeDevice final : public device::Device {
 public:
  enum class Temper { kSerial, kLoose };
  struct Options {
    Temper temper = Temper::kSerial;
    uint64_t total_bytes = 1ull << 30;
    std::chrono::microseconds max_pause{0};  // before each piece of work
    uint64_t seed = 1;
  };
  // Work on a stream: runs on the stream's thread, and must end soon after `abandoned` is true.
  using Work = std::function<void(const std::atomic<bool>& abandoned)>;

  explicit FakeDevice(Options options) : options_(options) {}
  FakeDevice() : FakeDevice(Options()) {}
  ~FakeDevice() override {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(device_.empty()) << "device memory outlives its device";
    EXPECT_TRUE(pinned_.empty()) << "pinned memory outlives its device";
  }

  device::DeviceInfo info() const override {
    const std::lock_guard lock(mutex_);
    return {.name = "fake",
            .uuid = "fake",
            .total_bytes = options_.total_bytes,
            .free_bytes = options_.total_bytes - used_};
  }
  absl::StatusOr<std::unique_ptr<device::Memory>> Allocate(size_t bytes) override {
    if (const absl::Status status = Take(bytes); !status.ok()) return status;
    return std::make_unique<Block>(this, &device_, bytes, bytes);
  }
  absl::StatusOr<std::unique_ptr<device::Memory>> AllocatePinned(size_t bytes) override {
    return std::make_unique<Block>(this, &pinned_, bytes, 0);
  }
  absl::StatusOr<std::unique_ptr<device::Stream>> CreateStream() override {
    return std::make_unique<Stream>(this);
  }
  absl::StatusOr<std::unique_ptr<device::Event>> CreateEvent() override {
    return std::make_unique<Event>();
  }
  absl::StatusOr<bool> Reached(const device::Event& event) override {
    if (lost_) return Lost();
    const auto point = static_cast<const Event&>(event).point();
    return point == nullptr || *point;
  }
  absl::Status MakeCurrent() override { return lost_ ? Lost() : absl::OkStatus(); }

  // From here on every call fails, as with a CUDA context that an error has ended.
  void Lose() { lost_ = true; }
  // What communicators take of it.
  absl::Status Take(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (bytes > options_.total_bytes - used_) {
      return base::ResourceExhausted("{} bytes were asked for, {} are free", bytes,
                                     options_.total_bytes - used_);
    }
    used_ += bytes;
    return absl::OkStatus();
  }
  void Give(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    used_ -= bytes;
  }
  uint64_t used() const {
    const std::lock_guard lock(mutex_);
    return used_;
  }
  // Queues work that reads or writes `bytes` of the device.
  void Queue(device::Stream& stream, std::span<const std::byte> bytes, Work work) {
    EXPECT_TRUE(Within(device_, bytes)) << bytes.size() << " bytes that are not the device's";
    static_cast<Stream&>(stream).Queue({bytes}, std::move(work));
  }
  // The same on a stream by its native handle, of kernels: what they use is not known.
  static void QueueKernel(void* stream, std::function<void()> kernel) {
    static_cast<Stream*>(stream)->Queue({},
                                        [kernel = std::move(kernel)](const auto&) { kernel(); });
  }

 private:
  using Blocks = std::map<const std::byte*, size_t>;
  using Point = std::shared_ptr<std::atomic<bool>>;

  class Block final : public device::Memory {
   public:
    Block(FakeDevice* device, Blocks* blocks, size_t bytes, uint64_t taken)
        : device_(device), blocks_(blocks), taken_(taken), storage_(bytes + 256) {
      // What was there before is nobody's business: never zeros.
      std::fill(storage_.begin(), storage_.end(), std::byte{0xcd});
      const auto address = reinterpret_cast<uintptr_t>(storage_.data());
      bytes_ = {storage_.data() + (256 - address % 256) % 256, bytes};
      const std::lock_guard lock(device_->mutex_);
      (*blocks_)[bytes_.data()] = bytes;
    }
    ~Block() override {
      {
        const std::lock_guard lock(device_->mutex_);
        for (const auto& used : device_->in_use_) {
          EXPECT_TRUE(used.data() + used.size() <= bytes_.data() ||
                      used.data() >= bytes_.data() + bytes_.size())
              << "memory freed while queued work uses it";
        }
        blocks_->erase(bytes_.data());
      }
      if (taken_ > 0) device_->Give(taken_);
    }

   private:
    FakeDevice* const device_;
    Blocks* const blocks_;
    const uint64_t taken_;
    std::vector<std::byte> storage_;
  };

  class Event final : public device::Event {
   public:
    Point point() const {
      const std::lock_guard lock(mutex_);
      return point_;
    }
    void Set(Point point) {
      const std::lock_guard lock(mutex_);
      point_ = std::move(point);
    }

   private:
    mutable std::mutex mutex_;
    Point point_;
  };

  class Stream final : public device::Stream {
   public:
    explicit Stream(FakeDevice* device)
        : device_(device), random_(device->options_.seed), thread_([this] { Run(); }) {}
    ~Stream() override {
      {
        std::unique_lock lock(mutex_);
        const bool idle = changed_.wait_for(lock, std::chrono::seconds(5),
                                            [this] { return items_.empty() && !running_; });
        EXPECT_TRUE(idle) << "a stream was destroyed with work that does not end";
        stop_ = true;
      }
      abandoned_ = true;
      changed_.notify_all();
      thread_.join();
    }
    absl::Status CopyIn(std::byte* to, std::span<const std::byte> from) override {
      return Copy({to, from.size()}, from, std::span<const std::byte>(to, from.size()));
    }
    absl::Status CopyOut(std::span<std::byte> to, const std::byte* from) override {
      return Copy(to, {from, to.size()}, std::span<const std::byte>(from, to.size()));
    }
    absl::Status Record(device::Event& event) override {
      if (device_->lost_) return device_->Lost();
      const auto point = std::make_shared<std::atomic<bool>>(false);
      static_cast<Event&>(event).Set(point);
      Queue({}, [point](const auto&) { *point = true; });
      return absl::OkStatus();
    }
    absl::Status Wait(device::Event& event) override {
      if (device_->lost_) return device_->Lost();
      const Point point = static_cast<Event&>(event).point();
      if (point == nullptr) return absl::OkStatus();
      Queue({}, [point](const std::atomic<bool>& abandoned) {
        while (!*point && !abandoned) std::this_thread::sleep_for(std::chrono::microseconds(20));
      });
      return absl::OkStatus();
    }
    void* native() const override { return const_cast<Stream*>(this); }

    void Queue(std::vector<std::span<const std::byte>> uses, Work work) {
      Item item{.work = std::move(work)};
      {
        const std::lock_guard lock(device_->mutex_);
        item.ticket = device_->issued_++;
        for (const auto& use : uses) {
          item.uses.push_back(device_->in_use_.insert(device_->in_use_.end(), use));
        }
      }
      {
        const std::lock_guard lock(mutex_);
        items_.push_back(std::move(item));
      }
      changed_.notify_all();
    }

   private:
    struct Item {
      Work work;
      uint64_t ticket = 0;
      std::vector<std::list<std::span<const std::byte>>::iterator> uses;
    };

    absl::Status Copy(std::span<std::byte> to, std::span<const std::byte> from,
                      std::span<const std::byte> on_device) {
      if (device_->lost_) return device_->Lost();
      EXPECT_TRUE(device_->Within(device_->device_, on_device))
          << on_device.size() << " bytes that are not the device's";
      Queue({to, from}, [to, from](const auto&) {
        if (!to.empty()) std::memcpy(to.data(), from.data(), to.size());
      });
      return absl::OkStatus();
    }
    void Run() {
      while (true) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stop_ || !items_.empty(); });
        if (items_.empty()) return;
        Item item = std::move(items_.front());
        items_.pop_front();
        running_ = true;
        lock.unlock();
        Pause();
        device_->Begin(item.ticket, abandoned_);
        item.work(abandoned_);
        item.work = nullptr;
        device_->End(item.uses);
        lock.lock();
        running_ = false;
        lock.unlock();
        changed_.notify_all();
      }
    }
    void Pause() {
      const auto most = device_->options_.max_pause.count();
      if (most == 0) return;
      std::uniform_int_distribution<int64_t> pause(0, most);
      std::this_thread::sleep_for(std::chrono::microseconds(pause(random_)));
    }

    FakeDevice* const device_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Item> items_;
    bool running_ = false;
    bool stop_ = false;
    std::atomic<bool> abandoned_{false};
    std::minstd_rand random_;
    std::thread thread_;
  };

  static absl::Status Lost() { return base::Internal("the device was lost"); }
  bool Within(const Blocks& blocks, std::span<const std::byte> bytes) const {
    const std::lock_guard lock(mutex_);
    auto it = blocks.upper_bound(bytes.data());
    if (it == blocks.begin()) return false;
    --it;
    return bytes.data() + bytes.size() <= it->first + it->second;
  }
  void Begin(uint64_t ticket, const std::atomic<bool>& abandoned) {
    if (options_.temper == Temper::kLoose) return;
    std::unique_lock lock(mutex_);
    while (finished_ != ticket && !abandoned) {
      turn_.wait_for(lock, std::chrono::milliseconds(10));
    }
  }
  void End(const std::vector<std::list<std::span<const std::byte>>::iterator>& uses) {
    {
      const std::lock_guard lock(mutex_);
      for (const auto& use : uses) in_use_.erase(use);
      ++finished_;
    }
    turn_.notify_all();
  }

  const Options options_;
  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;
  std::condition_variable turn_;
  Blocks device_;
  Blocks pinned_;
  std::list<std::span<const std::byte>> in_use_;  // by queued work
  uint64_t used_ = 0;
  uint64_t issued_ = 0;
  uint64_t finished_ = 0;  // kSerial: the ticket whose turn it is
};

}  // namespace smartgen::fakes
