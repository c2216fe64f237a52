// Aligned memory for weights and activations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace smartgen::executor::cpu {

struct FreeDeleter {
  void operator()(void* p) const;
};

// Uninitialised bytes, aligned to 2 MiB and asked to be huge pages where large, else to 64 bytes.
// Aborts when the system has no memory, as operator new would under our no-exceptions rule.
std::unique_ptr<std::byte, FreeDeleter> AllocateAligned(int64_t bytes);

// An array of floats that only grows; contents are lost when it does.
class FloatBuffer {
 public:
  FloatBuffer() = default;
  explicit FloatBuffer(int64_t size) { Resize(size); }
  void Resize(int64_t size);
  float* data() { return reinterpret_cast<float*>(bytes_.get()); }
  const float* data() const { return reinterpret_cast<const float*>(bytes_.get()); }
  int64_t size() const { return size_; }

 private:
  std::unique_ptr<std::byte, FreeDeleter> bytes_;
  int64_t size_ = 0;
};

// Hands out 64-byte aligned pieces of large blocks; frees all at once. Not thread-safe.
class Arena {
 public:
  std::byte* Allocate(int64_t bytes);
  int64_t allocated() const { return allocated_; }

 private:
  std::vector<std::unique_ptr<std::byte, FreeDeleter>> blocks_;
  std::byte* next_ = nullptr;
  int64_t left_ = 0;
  int64_t allocated_ = 0;
};

}  // namespace smartgen::executor::cpu
