#include "tools/bench/request_fields.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "absl/strings/ascii.h"
#include "tools/bench/generation.h"

namespace smartgen::tools::bench {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

const FieldDescriptor* OptionsField(const Descriptor& request) {
  for (const char* name : {"transfer", "transfer_options"}) {
    const FieldDescriptor* field = request.FindFieldByName(name);
    if (field != nullptr && field->type() == FieldDescriptor::TYPE_MESSAGE &&
        !field->is_repeated()) {
      return field;
    }
  }
  return nullptr;
}

// Enum values without what all of them begin with: SELECTOR_QUEST, SELECTOR_HATA: quest, hata.
std::vector<std::string> ShortNames(const EnumDescriptor& descriptor) {
  std::string common = descriptor.value(0)->name();
  for (int i = 1; i < descriptor.value_count(); ++i) {
    const std::string& name = descriptor.value(i)->name();
    const auto end = std::mismatch(common.begin(), common.end(), name.begin(), name.end());
    common.erase(end.first, common.end());
  }
  const size_t cut = common.rfind('_') == std::string::npos ? 0 : common.rfind('_') + 1;
  std::vector<std::string> names;
  for (int i = 0; i < descriptor.value_count(); ++i) {
    names.push_back(absl::AsciiStrToLower(descriptor.value(i)->name().substr(cut)));
  }
  return names;
}

template <typename Number>
std::optional<Number> Parse(const std::string& text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return number;
}

absl::Status BadValue(const FieldDescriptor& field, std::string_view want,
                      const std::string& value) {
  return base::InvalidArgument("option {}: want {}, got \"{}\"", field.name(), want, value);
}

template <typename Number, typename Set>
absl::Status SetNumber(const FieldDescriptor& field, const std::string& value, Set set) {
  const auto number = Parse<Number>(value);
  if (!number) return BadValue(field, "a number", value);
  set(*number);
  return absl::OkStatus();
}

absl::Status SetEnum(Message& message, const FieldDescriptor& field, const std::string& value) {
  const std::vector<std::string> names = ShortNames(*field.enum_type());
  const auto found = std::find(names.begin(), names.end(), absl::AsciiStrToLower(value));
  if (found == names.end()) {
    return BadValue(field, fmt::format("one of {}", fmt::join(names, ", ")), value);
  }
  message.GetReflection()->SetEnum(
      &message, &field, field.enum_type()->value(static_cast<int>(found - names.begin())));
  return absl::OkStatus();
}

absl::Status SetField(Message& message, const FieldDescriptor& field, const std::string& value) {
  const Reflection& r = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return SetNumber<int32_t>(field, value, [&](auto n) { r.SetInt32(&message, &field, n); });
    case FieldDescriptor::CPPTYPE_INT64:
      return SetNumber<int64_t>(field, value, [&](auto n) { r.SetInt64(&message, &field, n); });
    case FieldDescriptor::CPPTYPE_UINT32:
      return SetNumber<uint32_t>(field, value, [&](auto n) { r.SetUInt32(&message, &field, n); });
    case FieldDescriptor::CPPTYPE_UINT64:
      return SetNumber<uint64_t>(field, value, [&](auto n) { r.SetUInt64(&message, &field, n); });
    case FieldDescriptor::CPPTYPE_FLOAT:
      return SetNumber<float>(field, value, [&](auto n) { r.SetFloat(&message, &field, n); });
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return SetNumber<double>(field, value, [&](auto n) { r.SetDouble(&message, &field, n); });
    case FieldDescriptor::CPPTYPE_BOOL: {
      const bool yes = value == "true" || value == "on";
      if (!yes && value != "false" && value != "off") {
        return BadValue(field, "true, false, on or off", value);
      }
      r.SetBool(&message, &field, yes);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_STRING:
      r.SetString(&message, &field, value);
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_ENUM:
      return SetEnum(message, field, value);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  return BadValue(field, "an option that is no message", value);
}

double NumberOf(const Message& message, const FieldDescriptor& field) {
  const Reflection& r = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return r.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<double>(r.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_UINT32:
      return r.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return static_cast<double>(r.GetUInt64(message, &field));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return r.GetFloat(message, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return r.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return r.GetBool(message, &field) ? 1 : 0;
    default:
      return 0;
  }
}

void FlattenRepeated(const Message& message, const FieldDescriptor& field, const std::string& name,
                     Generation& generation) {
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) return;  // lists of numbers: no use yet
  const Reflection& r = *message.GetReflection();
  for (int i = 0; i < r.FieldSize(message, &field); ++i) {
    const Message& entry = r.GetRepeatedMessage(message, &field, i);
    if (!field.is_map()) {
      Flatten(entry, fmt::format("{}.{}", name, i), generation);
      continue;
    }
    // The entry of a map: key and value.
    Generation parts;
    Flatten(entry, "", parts);
    const std::string key = parts.texts.contains("key") ? parts.texts["key"]
                                                        : fmt::format("{:g}", parts.numbers["key"]);
    const std::string full = name + "." + key;
    if (parts.numbers.contains("value")) generation.numbers[full] = parts.numbers["value"];
    if (parts.texts.contains("value")) generation.texts[full] = parts.texts["value"];
  }
}

}  // namespace

std::vector<std::string> OptionNames(const Descriptor& request) {
  std::vector<std::string> names;
  const FieldDescriptor* options = OptionsField(request);
  if (options == nullptr) return names;
  for (int i = 0; i < options->message_type()->field_count(); ++i) {
    names.push_back(options->message_type()->field(i)->name());
  }
  return names;
}

absl::Status SetOption(Message& request, const std::string& name, const std::string& value) {
  const FieldDescriptor* options = OptionsField(*request.GetDescriptor());
  if (options == nullptr) {
    return base::InvalidArgument("option {}: this version's requests carry no transfer options",
                                 name);
  }
  const FieldDescriptor* field = options->message_type()->FindFieldByName(name);
  if (field == nullptr || field->is_repeated()) {
    return base::InvalidArgument("option {}: there is none; there are {}", name,
                                 fmt::join(OptionNames(*request.GetDescriptor()), ", "));
  }
  return SetField(*request.GetReflection()->MutableMessage(&request, options), *field, value);
}

void Flatten(const Message& message, const std::string& prefix, Generation& generation) {
  const Descriptor& descriptor = *message.GetDescriptor();
  const Reflection& r = *message.GetReflection();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    const std::string name = prefix.empty() ? field.name() : prefix + "." + field.name();
    if (field.is_repeated()) {
      FlattenRepeated(message, field, name, generation);
    } else if (field.has_presence() && !r.HasField(message, &field)) {
      continue;  // not said: not the same as zero
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      Flatten(r.GetMessage(message, &field), name, generation);
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      generation.texts[name] = r.GetString(message, &field);
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
      generation.texts[name] = absl::AsciiStrToLower(r.GetEnum(message, &field)->name());
    } else {
      generation.numbers[name] = NumberOf(message, field);
    }
  }
}

}  // namespace smartgen::tools::bench
