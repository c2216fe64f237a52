#include "common/model/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace smartgen::model {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are little-endian");

// Far above what any published model has, far below what would hurt.
constexpr uint64_t kMaxKeys = 1 << 16;
constexpr uint64_t kMaxTensors = 1 << 18;
constexpr uint64_t kMaxNameBytes = 256;
constexpr uint64_t kMaxKeyBytes = 65535;  // the format's own limit
constexpr uint32_t kMaxDimensions = 4;    // the format's own limit
constexpr int64_t kMaxDimension = int64_t{1} << 40;
constexpr uint32_t kMaxAlignment = 1 << 20;
constexpr int kMaxArrayDepth = 4;
constexpr uint64_t kSmallestKey = 8 + 4 + 1;
constexpr uint64_t kSmallestTensor = 8 + 4 + 8 + 4 + 8;

// Bytes of a scalar; 0 for strings, arrays and unknown types.
uint64_t ScalarBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

std::optional<TensorType> TensorTypeFromId(uint32_t id) {
  switch (id) {
    case 0:
      return TensorType::kF32;
    case 1:
      return TensorType::kF16;
    case 2:
      return TensorType::kQ4_0;
    case 3:
      return TensorType::kQ4_1;
    case 6:
      return TensorType::kQ5_0;
    case 7:
      return TensorType::kQ5_1;
    case 8:
      return TensorType::kQ8_0;
    case 12:
      return TensorType::kQ4_K;
    case 13:
      return TensorType::kQ5_K;
    case 14:
      return TensorType::kQ6_K;
    case 30:
      return TensorType::kBF16;
    default:
      return std::nullopt;
  }
}

template <typename T>
T Load(std::span<const std::byte> bytes, size_t at = 0) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

// Moves through the header; never past the end.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return bytes_.size() - position_; }

  absl::StatusOr<std::span<const std::byte>> Take(uint64_t count, std::string_view what) {
    if (count > remaining()) {
      return base::InvalidArgument("at byte {}: {} wants {} bytes, file has {} left", position_,
                                   what, count, remaining());
    }
    const auto taken = bytes_.subspan(position_, count);
    position_ += count;
    return taken;
  }

  template <typename T>
  absl::StatusOr<T> Number(std::string_view what) {
    ASSIGN_OR_RETURN(const auto bytes, Take(sizeof(T), what));
    return Load<T>(bytes);
  }

  absl::StatusOr<std::span<const std::byte>> String(uint64_t max_bytes, std::string_view what) {
    ASSIGN_OR_RETURN(const uint64_t length, Number<uint64_t>(what));
    if (length > max_bytes) {
      return base::InvalidArgument("at byte {}: {} wants at most {} bytes, file says {}", position_,
                                   what, max_bytes, length);
    }
    return Take(length, what);
  }

 private:
  std::span<const std::byte> bytes_;
  uint64_t position_ = 0;
};

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

absl::StatusOr<GgufType> ReadType(Reader& reader) {
  const uint64_t at = reader.position();
  ASSIGN_OR_RETURN(const uint32_t id, reader.Number<uint32_t>("value type"));
  if (id > static_cast<uint32_t>(GgufType::kF64)) {
    return base::InvalidArgument("at byte {}: unknown value type {}", at, id);
  }
  return static_cast<GgufType>(id);
}

absl::StatusOr<GgufValue> ReadValue(Reader& reader, GgufType type, int depth);

// Walks over the elements so that every length in them is checked once, here.
absl::Status WalkArray(Reader& reader, GgufType element, uint64_t count, int depth) {
  const uint64_t scalar = ScalarBytes(element);
  if (scalar > 0) {
    if (count > reader.remaining() / scalar) {
      return base::InvalidArgument("at byte {}: array of {} values of {} bytes, file has {} left",
                                   reader.position(), count, scalar, reader.remaining());
    }
    ASSIGN_OR_RETURN(const auto bytes, reader.Take(count * scalar, "array"));
    if (element == GgufType::kBool) {
      const bool valid = std::ranges::all_of(bytes, [](std::byte b) { return b <= std::byte{1}; });
      if (!valid) return base::InvalidArgument("array of booleans: want only 0 and 1");
    }
    return absl::OkStatus();
  }
  for (uint64_t i = 0; i < count; ++i) {
    RETURN_IF_ERROR(ReadValue(reader, element, depth).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<GgufValue> ReadValue(Reader& reader, GgufType type, int depth) {
  GgufValue value;
  value.type = type;
  if (type == GgufType::kString) {
    ASSIGN_OR_RETURN(value.bytes, reader.String(reader.remaining(), "string"));
    return value;
  }
  if (type == GgufType::kArray) {
    if (depth >= kMaxArrayDepth) {
      return base::InvalidArgument("at byte {}: arrays nested more than {} deep", reader.position(),
                                   kMaxArrayDepth);
    }
    ASSIGN_OR_RETURN(value.element_type, ReadType(reader));
    ASSIGN_OR_RETURN(value.count, reader.Number<uint64_t>("array length"));
    Reader start = reader;
    const uint64_t begin = reader.position();
    RETURN_IF_ERROR(WalkArray(reader, value.element_type, value.count, depth + 1));
    ASSIGN_OR_RETURN(value.bytes, start.Take(reader.position() - begin, "array"));
    return value;
  }
  ASSIGN_OR_RETURN(value.bytes, reader.Take(ScalarBytes(type), "value"));
  if (type == GgufType::kBool && value.bytes[0] > std::byte{1}) {
    return base::InvalidArgument("boolean: want 0 or 1, file has {}",
                                 static_cast<int>(value.bytes[0]));
  }
  return value;
}

absl::Status ReadKeys(Reader& reader, uint64_t count, GgufFile& file) {
  for (uint64_t i = 0; i < count; ++i) {
    const std::string where = fmt::format("key {} of {}", i + 1, count);
    auto key = reader.String(kMaxKeyBytes, where);
    if (!key.ok()) return key.status();
    const std::string_view name = AsText(*key);
    if (name.empty()) return base::InvalidArgument("{}: the name is empty", where);
    const auto context = [&](const absl::Status& status) {
      return base::Annotate(status, fmt::format("key {}", Printable(name)));
    };
    const auto type = ReadType(reader);
    if (!type.ok()) return context(type.status());
    auto value = ReadValue(reader, *type, 0);
    if (!value.ok()) return context(value.status());
    if (!file.keys.emplace(name, *value).second) {
      return base::InvalidArgument("key {} appears twice", Printable(name));
    }
  }
  return absl::OkStatus();
}

struct RawTensor {
  std::string name;
  std::vector<int64_t> shape;
  TensorType type;
  uint64_t offset;
  uint64_t bytes;
};

// Bytes that the tensor's data must have, all multiplications checked.
absl::StatusOr<uint64_t> DataBytes(const RawTensor& tensor) {
  const BlockShape block = BlockShapeOf(tensor.type);
  if (tensor.shape[0] % block.elements != 0) {
    return base::InvalidArgument("tensor {}: {} of type {} wants rows of whole blocks of {} values",
                                 Printable(tensor.name), ShapeString(tensor.shape),
                                 TensorTypeName(tensor.type), block.elements);
  }
  uint64_t bytes = static_cast<uint64_t>(tensor.shape[0] / block.elements);
  bool overflow = __builtin_mul_overflow(bytes, static_cast<uint64_t>(block.bytes), &bytes);
  for (size_t i = 1; i < tensor.shape.size(); ++i) {
    overflow |= __builtin_mul_overflow(bytes, static_cast<uint64_t>(tensor.shape[i]), &bytes);
  }
  if (overflow) {
    return base::InvalidArgument("tensor {}: the size of {} overflows 64 bits",
                                 Printable(tensor.name), ShapeString(tensor.shape));
  }
  return bytes;
}

absl::StatusOr<RawTensor> ReadTensor(Reader& reader, const std::string& where) {
  RawTensor tensor;
  ASSIGN_OR_RETURN(const auto name, reader.String(kMaxNameBytes, where));
  tensor.name = AsText(name);
  const std::string context = fmt::format("tensor {}", Printable(tensor.name));
  ASSIGN_OR_RETURN(const uint32_t dimensions, reader.Number<uint32_t>(context));
  if (dimensions < 1 || dimensions > kMaxDimensions) {
    return base::InvalidArgument("{}: want 1 to {} dimensions, file has {}", context,
                                 kMaxDimensions, dimensions);
  }
  for (uint32_t i = 0; i < dimensions; ++i) {
    ASSIGN_OR_RETURN(const uint64_t size, reader.Number<uint64_t>(context));
    if (size < 1 || size > static_cast<uint64_t>(kMaxDimension)) {
      return base::InvalidArgument("{}: dimension {}: want 1 to {}, file has {}", context, i,
                                   kMaxDimension, size);
    }
    tensor.shape.push_back(static_cast<int64_t>(size));
  }
  ASSIGN_OR_RETURN(const uint32_t type_id, reader.Number<uint32_t>(context));
  const std::optional<TensorType> type = TensorTypeFromId(type_id);
  if (!type.has_value()) {
    return base::Unimplemented(
        "{}: type {} is not supported; this version reads F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, "
        "Q8_0, Q4_K, Q5_K, Q6_K",
        context, type_id);
  }
  tensor.type = *type;
  ASSIGN_OR_RETURN(tensor.offset, reader.Number<uint64_t>(context));
  ASSIGN_OR_RETURN(tensor.bytes, DataBytes(tensor));
  return tensor;
}

absl::StatusOr<uint32_t> Alignment(const GgufFile& file) {
  const GgufValue* value = file.Find("general.alignment");
  if (value == nullptr) return 32;
  const std::optional<int64_t> alignment = value->AsInteger();
  if (!alignment.has_value() || *alignment < 8 || *alignment > kMaxAlignment ||
      !std::has_single_bit(static_cast<uint64_t>(*alignment))) {
    return base::InvalidArgument("general.alignment: want a power of two from 8 to {}, file has {}",
                                 kMaxAlignment,
                                 alignment ? std::to_string(*alignment) : "no integer");
  }
  return static_cast<uint32_t>(*alignment);
}

// Gives every tensor its bytes in `data`, the part of the file after the header.
absl::Status PlaceTensors(const std::vector<RawTensor>& raw, std::span<const std::byte> data,
                          uint32_t alignment, FileTensors& out) {
  for (const RawTensor& tensor : raw) {
    const std::string name = Printable(tensor.name);
    if (tensor.offset % alignment != 0) {
      return base::InvalidArgument("tensor {}: offset {} is not a multiple of {}", name,
                                   tensor.offset, alignment);
    }
    if (tensor.offset > data.size() || tensor.bytes > data.size() - tensor.offset) {
      return base::InvalidArgument(
          "tensor {}: wants {} bytes at offset {}, file has {} bytes of data", name, tensor.bytes,
          tensor.offset, data.size());
    }
    FileTensor placed{tensor.name, tensor.shape, std::string(TensorTypeName(tensor.type)),
                      tensor.type, data.subspan(tensor.offset, tensor.bytes)};
    if (!out.emplace(tensor.name, std::move(placed)).second) {
      return base::InvalidArgument("tensor {} appears twice", name);
    }
  }
  std::vector<const RawTensor*> order;
  for (const RawTensor& tensor : raw) order.push_back(&tensor);
  std::ranges::sort(order, {}, &RawTensor::offset);
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i]->offset < order[i - 1]->offset + order[i - 1]->bytes) {
      return base::InvalidArgument("tensors {} and {} overlap", Printable(order[i - 1]->name),
                                   Printable(order[i]->name));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckVersion(uint32_t version) {
  if (version == 2 || version == 3) return absl::OkStatus();
  const uint32_t swapped = __builtin_bswap32(version);
  if (swapped == 2 || swapped == 3) {
    return base::Unimplemented("a big-endian GGUF file; this version reads little-endian ones");
  }
  return base::Unimplemented("GGUF version {}; this version reads 2 and 3", version);
}

}  // namespace

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto found = keys.find(key);
  return found == keys.end() ? nullptr : &found->second;
}

absl::StatusOr<GgufFile> ParseGguf(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  ASSIGN_OR_RETURN(const auto magic, reader.Take(4, "magic"));
  if (AsText(magic) != "GGUF") {
    return base::InvalidArgument("not a GGUF file: it starts with \"{}\"",
                                 Printable(AsText(magic)));
  }
  GgufFile file;
  ASSIGN_OR_RETURN(file.version, reader.Number<uint32_t>("version"));
  RETURN_IF_ERROR(CheckVersion(file.version));
  ASSIGN_OR_RETURN(const uint64_t tensor_count, reader.Number<uint64_t>("tensor count"));
  ASSIGN_OR_RETURN(const uint64_t key_count, reader.Number<uint64_t>("key count"));
  if (key_count > std::min(kMaxKeys, reader.remaining() / kSmallestKey)) {
    return base::InvalidArgument("{} keys do not fit into the {} bytes that follow (or exceed {})",
                                 key_count, reader.remaining(), kMaxKeys);
  }
  RETURN_IF_ERROR(ReadKeys(reader, key_count, file));
  if (tensor_count > std::min(kMaxTensors, reader.remaining() / kSmallestTensor)) {
    return base::InvalidArgument(
        "{} tensors do not fit into the {} bytes that follow (or exceed {})", tensor_count,
        reader.remaining(), kMaxTensors);
  }
  std::vector<RawTensor> tensors;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    ASSIGN_OR_RETURN(RawTensor tensor,
                     ReadTensor(reader, fmt::format("tensor {} of {}", i + 1, tensor_count)));
    tensors.push_back(std::move(tensor));
  }
  ASSIGN_OR_RETURN(const uint32_t alignment, Alignment(file));
  const uint64_t padding = (alignment - reader.position() % alignment) % alignment;
  if (tensor_count > 0) RETURN_IF_ERROR(reader.Take(padding, "padding").status());
  const auto data = bytes.subspan(reader.position());
  RETURN_IF_ERROR(PlaceTensors(tensors, data, alignment, file.tensors));
  return file;
}

std::optional<int64_t> GgufValue::AsInteger() const {
  switch (type) {
    case GgufType::kU8:
      return Load<uint8_t>(bytes);
    case GgufType::kI8:
      return Load<int8_t>(bytes);
    case GgufType::kU16:
      return Load<uint16_t>(bytes);
    case GgufType::kI16:
      return Load<int16_t>(bytes);
    case GgufType::kU32:
      return Load<uint32_t>(bytes);
    case GgufType::kI32:
      return Load<int32_t>(bytes);
    case GgufType::kI64:
      return Load<int64_t>(bytes);
    case GgufType::kU64: {
      const uint64_t value = Load<uint64_t>(bytes);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> GgufValue::AsReal() const {
  if (type == GgufType::kF32) return Load<float>(bytes);
  if (type == GgufType::kF64) return Load<double>(bytes);
  const std::optional<int64_t> integer = AsInteger();
  if (!integer.has_value()) return std::nullopt;
  return static_cast<double>(*integer);
}

std::optional<bool> GgufValue::AsBool() const {
  if (type != GgufType::kBool) return std::nullopt;
  return bytes[0] != std::byte{0};
}

std::optional<std::string_view> GgufValue::AsString() const {
  if (type != GgufType::kString) return std::nullopt;
  return AsText(bytes);
}

std::optional<std::vector<int64_t>> GgufValue::AsIntegers() const {
  const uint64_t scalar = ScalarBytes(element_type);
  if (type != GgufType::kArray || scalar == 0) return std::nullopt;
  std::vector<int64_t> out;
  out.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    const GgufValue element{element_type, GgufType::kU8, 0, bytes.subspan(i * scalar, scalar)};
    const std::optional<int64_t> value = element.AsInteger();
    if (!value.has_value()) return std::nullopt;
    out.push_back(*value);
  }
  return out;
}

std::optional<std::vector<float>> GgufValue::AsFloats() const {
  if (type != GgufType::kArray || element_type != GgufType::kF32) return std::nullopt;
  std::vector<float> out(count);
  if (count > 0) std::memcpy(out.data(), bytes.data(), count * sizeof(float));
  return out;
}

std::optional<std::vector<std::string>> GgufValue::AsStrings() const {
  if (type != GgufType::kArray || element_type != GgufType::kString) return std::nullopt;
  std::vector<std::string> out;
  out.reserve(count);
  size_t at = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t length = Load<uint64_t>(bytes, at);
    out.emplace_back(AsText(bytes.subspan(at + sizeof(length), length)));
    at += sizeof(length) + length;
  }
  return out;
}

}  // namespace smartgen::model
