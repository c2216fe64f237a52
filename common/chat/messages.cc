#include "common/chat/messages.h"

#include <string>
#include <string_view>
#include <utility>

namespace smartgen::chat {
namespace {

using Json = nlohmann::ordered_json;

absl::Status CheckValue(const Json& value, std::string_view where, int depth) {
  if (depth > kMaxDepth) {
    return base::InvalidArgument("{}: nested deeper than {} levels", where, kMaxDepth);
  }
  if (value.is_string() && !tokenizer::IsValidUtf8(value.get_ref<const std::string&>())) {
    return base::InvalidArgument("{}: a string is not valid UTF-8", where);
  }
  if (value.is_array()) {
    for (const Json& item : value) RETURN_IF_ERROR(CheckValue(item, where, depth + 1));
  } else if (value.is_object()) {
    for (const auto& [key, item] : value.items()) {
      if (!tokenizer::IsValidUtf8(key)) {
        return base::InvalidArgument("{}: a key is not valid UTF-8", where);
      }
      RETURN_IF_ERROR(CheckValue(item, where, depth + 1));
    }
  } else if (value.is_binary() || value.is_discarded()) {
    return base::InvalidArgument("{}: holds a value that is not JSON", where);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> JoinParts(const Json& parts, size_t message) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Json& part = parts[i];
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
      return base::InvalidArgument("messages[{}].content[{}]: want an object with a string 'type'",
                                   message, i);
    }
    const auto type = part["type"].get<std::string>();
    if (type != "text") {
      return base::InvalidArgument(
          "messages[{}].content[{}]: type '{}' is not supported; supported: text", message, i,
          type);
    }
    if (!part.contains("text") || !part["text"].is_string()) {
      return base::InvalidArgument("messages[{}].content[{}]: want a string 'text'", message, i);
    }
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

absl::StatusOr<Json> BuildMessage(const Json& message, size_t index, bool flatten) {
  if (!message.is_object()) {
    return base::InvalidArgument("messages[{}]: want an object, got {}", index,
                                 message.type_name());
  }
  Json built = Json::object();
  for (const auto& [key, value] : message.items()) {
    if (value.is_null()) continue;
    if (key != "content" || !value.is_array()) {
      built[key] = value;
      continue;
    }
    ASSIGN_OR_RETURN(std::string joined, JoinParts(value, index));
    built[key] = flatten ? Json(std::move(joined)) : value;
  }
  return built;
}

}  // namespace

absl::StatusOr<Json> BuildVariables(const RenderRequest& request, bool flatten) {
  if (!request.messages.is_array()) {
    return base::InvalidArgument("messages: want an array, got {}", request.messages.type_name());
  }
  if (!request.tools.is_array() && !request.tools.is_null()) {
    return base::InvalidArgument("tools: want an array, got {}", request.tools.type_name());
  }
  if (!request.extra.is_object() && !request.extra.is_null()) {
    return base::InvalidArgument("template variables: want an object, got {}",
                                 request.extra.type_name());
  }
  RETURN_IF_ERROR(CheckValue(request.messages, "messages", 0));
  RETURN_IF_ERROR(CheckValue(request.tools, "tools", 0));
  RETURN_IF_ERROR(CheckValue(request.extra, "template variables", 0));
  Json variables = Json::object();
  Json& messages = variables["messages"] = Json::array();
  for (size_t i = 0; i < request.messages.size(); ++i) {
    ASSIGN_OR_RETURN(Json message, BuildMessage(request.messages[i], i, flatten));
    messages.push_back(std::move(message));
  }
  variables["tools"] = request.tools;
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = request.add_generation_prompt;
  if (request.extra.is_null()) return variables;
  for (const auto& [key, value] : request.extra.items()) {
    if (key == "messages" || key == "tools" || key == "add_generation_prompt") {
      return base::InvalidArgument("template variables: '{}' is set by the request itself", key);
    }
    variables[key] = value;
  }
  return variables;
}

}  // namespace smartgen::chat
