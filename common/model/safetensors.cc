#include "common/model/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "common/model/json.h"

namespace smartgen::model {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr uint64_t kLengthBytes = 8;
// A model of 1,000 layers in one file needs about 2 MB.
constexpr uint64_t kMaxHeaderBytes = 16 << 20;
constexpr size_t kMaxIndexBytes = 32 << 20;
constexpr size_t kMaxDimensions = 8;
constexpr int64_t kMaxDimension = int64_t{1} << 40;
constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxShards = 1024;

struct Dtype {
  std::string_view name;
  int bytes;
  std::optional<TensorType> type;  // nullopt: no weight may have it, but it may lie about
};
constexpr Dtype kDtypes[] = {
    {"F32", 4, TensorType::kF32}, {"F16", 2, TensorType::kF16}, {"BF16", 2, TensorType::kBF16},
    {"F64", 8, std::nullopt},     {"I64", 8, std::nullopt},     {"U64", 8, std::nullopt},
    {"I32", 4, std::nullopt},     {"U32", 4, std::nullopt},     {"I16", 2, std::nullopt},
    {"U16", 2, std::nullopt},     {"I8", 1, std::nullopt},      {"U8", 1, std::nullopt},
    {"BOOL", 1, std::nullopt},    {"F8_E4M3", 1, std::nullopt}, {"F8_E5M2", 1, std::nullopt},
};

absl::StatusOr<Dtype> DtypeOf(const nlohmann::json& entry, const std::string& where) {
  auto name = TextMemberOr(entry, "dtype", "");
  if (!name.ok()) return base::Annotate(name.status(), where);
  const auto* found = std::ranges::find(kDtypes, std::string_view(*name), &Dtype::name);
  if (found == std::end(kDtypes)) {
    return base::Unimplemented(
        "{}: dtype \"{}\" is not supported; this version reads F32, F16, BF16", where,
        Printable(*name));
  }
  return *found;
}

// The array of non-negative integers at `key`.
absl::StatusOr<std::vector<int64_t>> Integers(const nlohmann::json& entry, std::string_view key,
                                              size_t max_count, const std::string& where) {
  const nlohmann::json* array = Member(entry, key);
  if (array == nullptr || !array->is_array() || array->size() > max_count) {
    return base::InvalidArgument("{}: {}: want an array of at most {} integers", where, key,
                                 max_count);
  }
  std::vector<int64_t> out;
  for (const nlohmann::json& element : *array) {
    const std::optional<int64_t> value = AsInteger(element);
    if (!value.has_value() || *value < 0) {
      return base::InvalidArgument(
          "{}: {}: want integers from 0, file has {}", where, key,
          element.is_primitive()
              ? element.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)
              : "none");
    }
    out.push_back(*value);
  }
  return out;
}

struct Entry {
  FileTensor tensor;
  uint64_t begin;
  uint64_t end;
};

absl::StatusOr<Entry> ReadEntry(const std::string& name, const nlohmann::json& json,
                                std::span<const std::byte> data) {
  const std::string where = fmt::format("tensor {}", Printable(name));
  if (name.empty() || name.size() > kMaxNameBytes) {
    return base::InvalidArgument("{}: want a name of 1 to {} bytes", where, kMaxNameBytes);
  }
  ASSIGN_OR_RETURN(const Dtype dtype, DtypeOf(json, where));
  ASSIGN_OR_RETURN(std::vector<int64_t> shape, Integers(json, "shape", kMaxDimensions, where));
  ASSIGN_OR_RETURN(const auto offsets, Integers(json, "data_offsets", 2, where));
  if (offsets.size() != 2) {
    return base::InvalidArgument("{}: data_offsets: want 2 integers, file has {}", where,
                                 offsets.size());
  }
  const auto begin = static_cast<uint64_t>(offsets[0]);
  const auto end = static_cast<uint64_t>(offsets[1]);
  if (begin > end || end > data.size()) {
    return base::InvalidArgument("{}: data_offsets [{} {}]: want them in order and at most {}",
                                 where, begin, end, data.size());
  }
  uint64_t want = static_cast<uint64_t>(dtype.bytes);
  bool overflow = false;
  for (const int64_t size : shape) {
    overflow |=
        size > kMaxDimension || __builtin_mul_overflow(want, static_cast<uint64_t>(size), &want);
  }
  if (overflow) {
    return base::InvalidArgument("{}: the size of {} overflows", where, ShapeString(shape));
  }
  if (want != end - begin) {
    return base::InvalidArgument("{}: {} of {} wants {} bytes, data_offsets [{} {}] hold {}", where,
                                 ShapeString(shape), dtype.name, want, begin, end, end - begin);
  }
  FileTensor tensor{name, std::move(shape), std::string(dtype.name), dtype.type,
                    data.subspan(begin, end - begin)};
  return Entry{std::move(tensor), begin, end};
}

// The format allows neither holes nor overlaps: bytes that nothing names could smuggle in anything.
absl::Status CheckCoverage(const std::vector<Entry>& entries, uint64_t data_bytes) {
  std::vector<const Entry*> order;
  for (const Entry& entry : entries) order.push_back(&entry);
  std::ranges::sort(order, {}, [](const Entry* e) { return std::pair(e->begin, e->end); });
  uint64_t at = 0;
  for (const Entry* entry : order) {
    if (entry->begin != at) {
      return base::InvalidArgument("tensor {}: data begins at {}, want {} (no hole, no overlap)",
                                   Printable(entry->tensor.name), entry->begin, at);
    }
    at = entry->end;
  }
  if (at == data_bytes) return absl::OkStatus();
  return base::InvalidArgument("tensors take {} bytes of data, file has {}", at, data_bytes);
}

absl::Status CheckShardName(const std::string& name) {
  const bool plain = !name.empty() && name.size() <= 255 && name.front() != '.' &&
                     name.find('/') == std::string::npos && name.find('\\') == std::string::npos &&
                     name.find('\0') == std::string::npos && name.ends_with(".safetensors");
  if (plain) return absl::OkStatus();
  return base::InvalidArgument(
      "shard \"{}\": want the plain name of a .safetensors file in the same folder",
      Printable(name));
}

}  // namespace

absl::Status ParseSafetensors(std::span<const std::byte> bytes, FileTensors& out) {
  if (bytes.size() < kLengthBytes) {
    return base::InvalidArgument("want at least {} bytes, file has {}", kLengthBytes, bytes.size());
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  const auto rest = bytes.subspan(kLengthBytes);
  if (header_bytes > std::min<uint64_t>(rest.size(), kMaxHeaderBytes)) {
    return base::InvalidArgument(
        "the header wants {} bytes, file has {} after its length (and at most {} are read)",
        header_bytes, rest.size(), kMaxHeaderBytes);
  }
  const std::string_view text(reinterpret_cast<const char*>(rest.data()), header_bytes);
  auto header = ParseJsonObject(text);
  if (!header.ok()) return base::Annotate(header.status(), "header");
  const auto data = rest.subspan(header_bytes);
  std::vector<Entry> entries;
  for (const auto& [name, json] : header->items()) {
    if (name == "__metadata__") continue;
    ASSIGN_OR_RETURN(Entry entry, ReadEntry(name, json, data));
    entries.push_back(std::move(entry));
  }
  RETURN_IF_ERROR(CheckCoverage(entries, data.size()));
  for (Entry& entry : entries) {
    const std::string name = entry.tensor.name;
    if (!out.emplace(name, std::move(entry.tensor)).second) {
      return base::InvalidArgument("tensor {} is in another shard already", Printable(name));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardIndex> ParseShardIndex(const std::string& text) {
  if (text.size() > kMaxIndexBytes) {
    return base::InvalidArgument("want at most {} bytes, file has {}", kMaxIndexBytes, text.size());
  }
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJsonObject(text));
  const nlohmann::json* map = Member(json, "weight_map");
  if (map == nullptr || !map->is_object()) {
    return base::InvalidArgument("key weight_map: want an object");
  }
  ShardIndex index;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) {
      return base::InvalidArgument("weight_map: tensor {}: want a file name", Printable(tensor));
    }
    const auto& name = file.get_ref<const std::string&>();
    RETURN_IF_ERROR(CheckShardName(name));
    index.file_of_tensor.emplace(tensor, name);
    index.files.insert(name);
    if (index.files.size() > kMaxShards) {
      return base::InvalidArgument("weight_map: want at most {} shards", kMaxShards);
    }
  }
  if (index.files.empty()) return base::InvalidArgument("weight_map names no shard");
  return index;
}

}  // namespace smartgen::model
