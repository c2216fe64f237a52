// Internal to common/model: the GGUF container, versions 2 and 3 (little-endian).
//
//   magic "GGUF", u32 version, u64 tensors, u64 keys,
//   keys:    string key, u32 type, value        (string: u64 length, bytes; array: u32 type, u64
//   count) tensors: string name, u32 dimensions, u64 each, u32 type, u64 offset padding to
//   general.alignment (32 unless given), then the data that the offsets count from
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/model/mapped_file.h"
#include "common/model/weight_table.h"

namespace smartgen::model {

enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// A checked value, still in the file.
struct GgufValue {
  GgufType type = GgufType::kU8;
  GgufType element_type = GgufType::kU8;  // of an array
  uint64_t count = 0;                     // of an array
  std::span<const std::byte> bytes;       // a scalar's, a string's, or all of an array's elements

  // nullopt: not an integer of any width, or one that int64 cannot hold.
  std::optional<int64_t> AsInteger() const;
  std::optional<double> AsReal() const;  // also from integers
  std::optional<bool> AsBool() const;
  std::optional<std::string_view> AsString() const;
  // An array's elements in order; nullopt where this is not an array of that kind.
  std::optional<std::vector<int64_t>> AsIntegers() const;
  std::optional<std::vector<float>> AsFloats() const;
  std::optional<std::vector<std::string>> AsStrings() const;
};

struct GgufFile {
  uint32_t version = 0;
  std::map<std::string_view, GgufValue> keys;  // the views point into the bytes that were parsed
  FileTensors tensors;

  const GgufValue* Find(std::string_view key) const;
};

// Checks every length, count, type, offset and name; `bytes` must outlive the result.
absl::StatusOr<GgufFile> ParseGguf(std::span<const std::byte> bytes);

// A model out of a whole GGUF file's bytes, which must outlive it unless `file` maps them.
absl::StatusOr<std::unique_ptr<Model>> OpenGguf(std::span<const std::byte> bytes,
                                                std::unique_ptr<MappedFile> file);

}  // namespace smartgen::model
