// Jinja features against transformers' environment; see tests/golden.
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>

#include "common/chat/chat_template.h"

namespace smartgen::chat {
namespace {

using Json = nlohmann::ordered_json;

int64_t SecondsOf(const std::string& iso) {
  std::tm time = {};
  EXPECT_NE(strptime(iso.c_str(), "%Y-%m-%dT%H:%M:%S", &time), nullptr);
  return timegm(&time);
}

TEST(JinjaGolden, EveryCaseRendersAsInTransformers) {
  std::ifstream file(SMARTGEN_TEST_DATA "/chat_jinja.json");
  const Json golden = Json::parse(file);
  ASSERT_FALSE(golden["cases"].empty());
  for (const Json& c : golden["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    TemplateOptions options;
    options.source = c["template"];
    if (c.contains("now")) {
      options.now = [now = SecondsOf(c["now"])] { return now; };
    }
    const auto chat = ChatTemplate::Create(options);
    ASSERT_TRUE(chat.ok()) << chat.status().ToString();
    RenderRequest request;
    request.messages = Json::array();
    request.extra = c["context"];
    for (const char* key : {"messages", "tools", "add_generation_prompt"}) {
      if (!request.extra.contains(key)) continue;
      const Json value = request.extra[key];
      request.extra.erase(key);
      if (key == std::string("messages")) request.messages = value;
      if (key == std::string("tools")) request.tools = value;
      if (key == std::string("add_generation_prompt")) request.add_generation_prompt = value;
    }
    const auto rendered = (*chat)->Render(request);
    if (c.contains("error")) {
      ASSERT_FALSE(rendered.ok());
      EXPECT_EQ(rendered.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(base::MessageOf(rendered.status()), c["message"].get<std::string>());
    } else {
      ASSERT_TRUE(rendered.ok()) << rendered.status().ToString();
      EXPECT_EQ(rendered->Text(), c["expected"].get<std::string>());
    }
  }
}

}  // namespace
}  // namespace smartgen::chat
