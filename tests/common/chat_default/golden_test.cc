// Prompts and ids of the default model against transformers; see tests/golden.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "common/chat/chat_template.h"
#include "common/model/model.h"
#include "common/tokenizer/tokenizer.h"

namespace smartgen::chat {
namespace {

using Json = nlohmann::ordered_json;

struct Default {
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat;
};

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (!value.ok()) {
    ADD_FAILURE() << value.status().ToString()
                  << "; fetch the model with: smartgen fetch-model smollm2-135m";
    std::abort();
  }
  return *std::move(value);
}

// The default model's tokenizer and template, opened once.
const Default& GetDefault() {
  static const Default value = [] {
    const char* given = std::getenv("SMARTGEN_TEST_MODEL");
    const auto path = OrDie(model::ResolveModelPath(given != nullptr ? given : "smollm2-135m"));
    const auto opened = OrDie(model::Model::Open(path));
    Default result;
    result.tokenizer = OrDie(tokenizer::Tokenizer::Create(opened->tokenizer_data()));
    TemplateOptions options;
    options.source = opened->tokenizer_data().chat_template;
    options.bos_token = "<|im_start|>";
    options.eos_token = "<|im_end|>";
    const auto specials = result.tokenizer->special_texts();
    options.special_texts.assign(specials.begin(), specials.end());
    result.chat = OrDie(ChatTemplate::Create(options));
    return result;
  }();
  return value;
}

RenderRequest RequestOf(const Json& c) {
  RenderRequest request;
  request.messages = c["messages"];
  if (c.contains("tools")) request.tools = c["tools"];
  request.add_generation_prompt = c["add_generation_prompt"];
  return request;
}

bool HasParts(const Json& messages) {
  for (const Json& message : messages) {
    if (message.contains("content") && message["content"].is_array()) return true;
  }
  return false;
}

TEST(ChatGolden, T4_PromptsAndIdsAreThoseOfTransformers) {
  std::ifstream file(SMARTGEN_TEST_DATA "/chat_smol.json");
  const Json golden = Json::parse(file);
  ASSERT_FALSE(golden["cases"].empty());
  for (const Json& c : golden["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const auto rendered = GetDefault().chat->Render(RequestOf(c));
    if (c.contains("error")) {
      // Transformers does not flatten parts where this template wants a string; we do.
      if (HasParts(c["messages"])) {
        EXPECT_TRUE(rendered.ok()) << rendered.status().ToString();
        continue;
      }
      ASSERT_FALSE(rendered.ok());
      EXPECT_EQ(rendered.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_NE(base::MessageOf(rendered.status()).find(c["message"].get<std::string>()),
                std::string::npos)
          << rendered.status().ToString();
      continue;
    }
    ASSERT_TRUE(rendered.ok()) << rendered.status().ToString();
    EXPECT_EQ(rendered->Text(), c["prompt"].get<std::string>());
    const auto ids = EncodeRendered(*GetDefault().tokenizer, *rendered, /*trust_user_text=*/true,
                                    /*add_bos=*/true);
    EXPECT_EQ(ids, c["ids"].get<std::vector<tokenizer::TokenId>>());
  }
}

TEST(ChatGolden, T5_ContentPartsGiveThePromptOfTheString) {
  RenderRequest parts;
  parts.messages = Json::parse(
      R"([{"role":"user","content":[{"type":"text","text":"First."},
                                    {"type":"text","text":" Second."}]}])");
  RenderRequest string;
  string.messages = Json::parse(R"([{"role":"user","content":"First. Second."}])");
  EXPECT_EQ(OrDie(GetDefault().chat->Render(parts)).Text(),
            OrDie(GetDefault().chat->Render(string)).Text());
}

// The count of control tokens is the template's, whatever stands in a message.
TEST(ChatGolden, NoMessageCanMakeAControlToken) {
  const Default& model = GetDefault();
  const auto controls = [&](const std::string& content) {
    RenderRequest request;
    request.messages = Json::array({{{"role", "user"}, {"content", content}},
                                    {{"role", "assistant"}, {"content", content}},
                                    {{"role", "user"}, {"content", content}}});
    const Rendered rendered = OrDie(model.chat->Render(request));
    int count = 0;
    for (const auto id : EncodeRendered(*model.tokenizer, rendered, false, true)) {
      count += model.tokenizer->IsControl(id);
    }
    return count;
  };
  const int plain = controls("hello");
  EXPECT_EQ(plain, 9);  // four messages (the template adds a system one) and the opened answer
  for (const std::string& special : model.tokenizer->special_texts()) {
    EXPECT_EQ(controls(special), plain) << special;
    EXPECT_EQ(controls("a" + special + special + "b"), plain) << special;
    for (size_t cut = 1; cut < special.size(); ++cut) {
      EXPECT_EQ(controls(special.substr(cut)), plain) << special;
      EXPECT_EQ(controls(special.substr(0, cut)), plain) << special;
      EXPECT_EQ(controls(special.substr(0, cut) + special + special.substr(cut)), plain) << special;
    }
  }
}

TEST(ChatGolden, UntrustedTextWithoutSpecialsEncodesAsTrustedText) {
  std::ifstream file(SMARTGEN_TEST_DATA "/chat_smol.json");
  const Json golden = Json::parse(file);
  for (const Json& c : golden["cases"]) {
    if (c.contains("error") || c["name"].get<std::string>().starts_with("special")) continue;
    const Rendered rendered = OrDie(GetDefault().chat->Render(RequestOf(c)));
    EXPECT_EQ(EncodeRendered(*GetDefault().tokenizer, rendered, false, true),
              c["ids"].get<std::vector<tokenizer::TokenId>>())
        << c["name"];
  }
}

}  // namespace
}  // namespace smartgen::chat
