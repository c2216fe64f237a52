// XXH3, for checksums on the wire, prefix-cache keys and model identity. Not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace smartgen::base {

uint64_t Hash64(std::span<const std::byte> bytes, uint64_t seed = 0);

// The same hash over scattered pieces: equal to Hash64 over their concatenation.
class Hasher64 {
 public:
  explicit Hasher64(uint64_t seed = 0);
  ~Hasher64();
  void Update(std::span<const std::byte> bytes);
  uint64_t Digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace smartgen::base
