// Little-endian integers in messages. `at` has room for them.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace smartgen::channel {

template <std::unsigned_integral T>
void Put(std::byte* at, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}

template <std::unsigned_integral T>
T Get(const std::byte* at) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<uint64_t>(at[i]) << (8 * i);
  return static_cast<T>(value);
}

}  // namespace smartgen::channel
