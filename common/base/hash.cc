#include "common/base/hash.h"

#include <xxhash.h>

namespace smartgen::base {

struct Hasher64::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

uint64_t Hash64(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

Hasher64::Hasher64(uint64_t seed) : state_(std::make_unique<State>()) {
  XXH3_64bits_reset_withSeed(state_->xxh, seed);
}
Hasher64::~Hasher64() = default;
void Hasher64::Update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_->xxh, bytes.data(), bytes.size());
}
uint64_t Hasher64::Digest() const { return XXH3_64bits_digest(state_->xxh); }

}  // namespace smartgen::base
