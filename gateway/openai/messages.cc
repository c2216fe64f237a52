#include "gateway/openai/messages.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "gateway/openai/request.h"

namespace smartgen::gateway {
namespace {

constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "function"};

std::optional<ApiError> CheckPart(const Json& part, const std::string& where) {
  if (!part.is_object()) {
    return BadRequest(where, fmt::format("{} must be an object, got {}", where, Describe(part)));
  }
  const auto type = part.find("type");
  if (type == part.end() || !type->is_string() || *type != "text") {
    const std::string got = type == part.end() ? "nothing" : Describe(*type);
    return BadRequest(
        where + ".type",
        fmt::format("{}.type must be \"text\" (this server reads text only), got {}", where, got));
  }
  const auto text = part.find("text");
  if (text == part.end() || !text->is_string()) {
    return BadRequest(where + ".text", fmt::format("{}.text must be a string", where));
  }
  return std::nullopt;
}

bool CallsTools(const Json& message) {
  for (const char* key : {"tool_calls", "function_call"}) {
    const auto it = message.find(key);
    if (it != message.end() && !it->is_null()) return true;
  }
  return false;
}

std::optional<ApiError> CheckContent(const Json& message, bool assistant,
                                     const std::string& where) {
  const auto content = message.find("content");
  const std::string name = where + ".content";
  if (content == message.end() || content->is_null()) {
    if (assistant && CallsTools(message)) return std::nullopt;
    return BadRequest(name, fmt::format("{} is missing", name));
  }
  if (content->is_string()) return std::nullopt;
  if (!content->is_array()) {
    return BadRequest(name, fmt::format("{} must be a string or a list of text parts, got {}", name,
                                        Describe(*content)));
  }
  for (size_t i = 0; i < content->size(); ++i) {
    if (auto error = CheckPart((*content)[i], fmt::format("{}[{}]", name, i))) return error;
  }
  return std::nullopt;
}

std::optional<ApiError> CheckToolCalls(const Json& message, const std::string& where) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || calls->is_null()) return std::nullopt;
  const std::string name = where + ".tool_calls";
  const bool good = calls->is_array() && std::all_of(calls->begin(), calls->end(),
                                                     [](const Json& c) { return c.is_object(); });
  if (!good) return BadRequest(name, fmt::format("{} must be an array of objects", name));
  return std::nullopt;
}

std::optional<ApiError> CheckMessage(const Json& message, const std::string& where) {
  if (!message.is_object()) {
    return BadRequest(where, fmt::format("{} must be an object, got {}", where, Describe(message)));
  }
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string() ||
      std::find(kRoles.begin(), kRoles.end(), role->get_ref<const std::string&>()) ==
          kRoles.end()) {
    return BadRequest(
        where + ".role",
        fmt::format("{}.role must be one of {}, got {}", where, fmt::join(kRoles, ", "),
                    role == message.end() ? "nothing" : Describe(*role)));
  }
  if (auto error = CheckToolCalls(message, where)) return error;
  return CheckContent(message, *role == "assistant", where);
}

std::optional<ApiError> CheckTool(const Json& tool, const std::string& where) {
  if (!tool.is_object()) {
    return BadRequest(where, fmt::format("{} must be an object, got {}", where, Describe(tool)));
  }
  const auto type = tool.find("type");
  if (type == tool.end() || !type->is_string() || *type != "function") {
    return BadRequest(where + ".type", fmt::format("{}.type must be \"function\"", where));
  }
  const auto function = tool.find("function");
  if (function == tool.end() || !function->is_object() || !function->contains("name") ||
      !(*function)["name"].is_string()) {
    return BadRequest(where + ".function",
                      fmt::format("{}.function must be an object with a \"name\"", where));
  }
  const auto parameters = function->find("parameters");
  if (parameters != function->end() && !parameters->is_null() && !parameters->is_object()) {
    return BadRequest(where + ".function.parameters",
                      fmt::format("{}.function.parameters must be an object, got {}", where,
                                  Describe(*parameters)));
  }
  return std::nullopt;
}

// An array under `key` whose elements `check` accepts; null and an error otherwise.
template <typename Check>
Json ReadArray(FieldReader& reader, std::string_view key, size_t limit, Check check) {
  const Json* array = reader.Find(key);
  if (array == nullptr) return nullptr;
  if (!array->is_array() || array->size() > limit) {
    reader.Fail(key,
                fmt::format("must be an array of at most {} objects, got {}", limit,
                            array->is_array() ? std::to_string(array->size()) : Describe(*array)));
    return nullptr;
  }
  for (size_t i = 0; i < array->size(); ++i) {
    if (auto error = check((*array)[i], fmt::format("{}[{}]", key, i))) {
      reader.Fail(std::move(*error));
      return nullptr;
    }
  }
  return *array;
}

}  // namespace

Json ReadMessages(FieldReader& reader) {
  Json messages = ReadArray(reader, "messages", kMaxMessages, CheckMessage);
  if (!messages.is_array() || messages.empty()) {
    reader.Fail("messages", "must be an array with at least one message");
  }
  return messages;
}

Json ReadTools(FieldReader& reader) {
  Json tools = ReadArray(reader, "tools", kMaxTools, CheckTool);
  if (tools.is_array() && tools.empty()) return nullptr;
  return tools;
}

}  // namespace smartgen::gateway
