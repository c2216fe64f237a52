#include "common/base/hash.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace smartgen::base {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Hash64, IsXxh3) {
  // XXH3_64bits of no bytes, seed 0, as xxHash's specification gives it.
  EXPECT_EQ(Hash64({}), 0x2d06800538d394c2U);
}

TEST(Hash64, DependsOnEveryByteAndOnTheSeed) {
  EXPECT_EQ(Hash64(Bytes("kv page")), Hash64(Bytes("kv page")));
  EXPECT_NE(Hash64(Bytes("kv page")), Hash64(Bytes("kv pagE")));
  EXPECT_NE(Hash64(Bytes("kv page")), Hash64(Bytes("kv page"), 1));
}

TEST(Hasher64, PiecesHashAsTheirConcatenation) {
  std::vector<std::byte> data(10000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 31 >> 3);
  for (const uint64_t seed : {0U, 77U}) {
    for (const size_t piece : {1U, 7U, 256U, 4096U, 10000U}) {
      Hasher64 hasher(seed);
      for (size_t at = 0; at < data.size(); at += piece) {
        hasher.Update(std::span(data).subspan(at, std::min(piece, data.size() - at)));
      }
      EXPECT_EQ(hasher.Digest(), Hash64(data, seed)) << piece;
    }
  }
}

}  // namespace
}  // namespace smartgen::base
