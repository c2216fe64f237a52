#include "common/chat/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "common/chat/python_template.h"

namespace smartgen::chat {
namespace {

using Json = nlohmann::ordered_json;

const std::vector<std::string> kSpecials = {"<|im_start|>", "<|im_end|>", "<|user|>", "<|end|>",
                                            "<|system|>",   "<s>",        "</s>"};

std::unique_ptr<ChatTemplate> Make(const std::string& source,
                                   std::vector<std::string> specials = kSpecials) {
  TemplateOptions options;
  options.source = source;
  options.bos_token = "<s>";
  options.special_texts = std::move(specials);
  auto chat = ChatTemplate::Create(options);
  EXPECT_TRUE(chat.ok()) << chat.status().ToString();
  return chat.ok() ? *std::move(chat) : nullptr;
}

RenderRequest Ask(const std::string& content, const std::string& role = "user") {
  RenderRequest request;
  request.messages = Json::array({{{"role", role}, {"content", content}}});
  return request;
}

// The prompt with request pieces in [[ ]].
std::string Marked(const absl::StatusOr<Rendered>& rendered) {
  if (!rendered.ok()) return rendered.status().ToString();
  std::string text;
  for (const Rendered::Piece& piece : rendered->pieces) {
    text += piece.from_user ? "[[" + piece.text + "]]" : piece.text;
  }
  return text;
}

std::string Render(const std::string& source, const RenderRequest& request) {
  return Marked(Make(source)->Render(request));
}

const char kChatMl[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";

TEST(ChatTemplate, SpecialStringsInContentAreTheRequests) {
  EXPECT_EQ(Render(kChatMl, Ask("a<|im_end|>b")), "<|im_start|>user\na[[<|im_end|>]]b<|im_end|>\n");
}

TEST(ChatTemplate, OrdinaryTextIsNotCutOut) {
  EXPECT_EQ(Render(kChatMl, Ask("a | b > c")), "<|im_start|>user\na | b > c<|im_end|>\n");
}

TEST(ChatTemplate, AStringPutTogetherFromTwoFieldsIsTheRequests) {
  RenderRequest request = Ask("im_end|>x");
  request.messages[0]["name"] = "<|";
  EXPECT_EQ(Render("{{ messages[0].name }}{{ messages[0].content }}<|im_end|>", request),
            "[[<|]]im_end[[|]]>x<|im_end|>");
}

TEST(ChatTemplate, AStringLeftByCuttingAMarkerOutIsTheRequests) {
  const std::string source =
      "{{ messages[0].content.split('#')[0] }}{{ messages[0].content.split('#')[1] }}<|end|>";
  EXPECT_EQ(Marked(Make(source)->Render(Ask("<|im_e#nd|>"))), "[[<|]]im_end[[|]]><|end|>");
}

TEST(ChatTemplate, ATrimmedStringIsTheRequests) {
  EXPECT_EQ(Render("<|user|>{{ messages[0].content | trim }}<|end|>", Ask("  <|end|> ")),
            "<|user|>[[<|end|>]]<|end|>");
}

TEST(ChatTemplate, ASlicedStringIsTheRequests) {
  EXPECT_EQ(Render("<|user|>{{ messages[0].content[2:9] }}<|end|>", Ask("ab<|end|>cd")),
            "<|user|>[[<|end|>]]<|end|>");
}

TEST(ChatTemplate, LengthsAreTheSameInBothRenders) {
  EXPECT_EQ(
      Render("{{ messages[0].content | length }}{{ messages[0].content }}<|end|>", Ask("<|end|>")),
      "7[[<|end|>]]<|end|>");
}

TEST(ChatTemplate, ContentIsStillSplitAtAMarkerBesideASpecialString) {
  const std::string source = "<|user|>{{ messages[0].content.split('</think>')[-1] }}<|end|>";
  EXPECT_EQ(Render(source, Ask("plan</think>say <|end|> now")),
            "<|user|>say [[<|end|>]] now<|end|>");
}

TEST(ChatTemplate, ATemplateThatLooksForASpecialStringIsStillSafe) {
  const std::string source =
      "<|user|>{{ 'found ' if '<|end|>' in messages[0].content }}{{ messages[0].content }}<|end|>";
  const std::string marked = Render(source, Ask("x<|end|>y"));
  EXPECT_EQ(marked, "<|user|>found x[[<|end|>]]y<|end|>");
}

TEST(ChatTemplate, KeysAndStringsInsideToolsAreTheRequests) {
  RenderRequest request = Ask("hi");
  request.tools = Json::parse(R"([{"name":"f<|end|>","p":{"<|user|>":["</s>", 1, null]}}])");
  EXPECT_EQ(Render("{{ tools | tojson }}<|end|>", request),
            R"([{"name": "f[[<|end|>]]", "p": {"[[<|user|>]]": ["[[</s>]]", 1, null]}}]<|end|>)");
}

TEST(ChatTemplate, EscapedJsonStaysSafe) {
  RenderRequest request = Ask("\"\\<|end|>\xC3\xA9");
  EXPECT_EQ(Render("<|user|>{{ messages[0].content | tojson }}<|end|>", request),
            "<|user|>\"\\\"\\\\[[<|end|>]]\xC3\xA9\"<|end|>");
  const std::string ascii =
      Render("<|user|>{{ messages[0].content | tojson(ensure_ascii=true) }}<|end|>", request);
  EXPECT_EQ(ascii, "<|user|>\"\\\"\\\\[[<|end|>]]\\u00e9\"<|end|>");
}

TEST(ChatTemplate, TheCharactersThatStandInMayBeInTheContent) {
  // The first blocks that would be chosen, and private use.
  const std::string taken = "\xE2\xA0\x80\xE2\xA1\x80\xEE\x80\x80";
  EXPECT_EQ(Render(kChatMl, Ask(taken + "<|im_end|>" + taken)),
            "<|im_start|>user\n" + taken + "[[<|im_end|>]]" + taken + "<|im_end|>\n");
}

TEST(ChatTemplate, UsualRolesMayMakeSpecialTokensOthersMayNot) {
  const std::string source = "{% for m in messages %}{{ '<|' + m.role + '|>' }}{% endfor %}";
  EXPECT_EQ(Render(source, Ask("", "user")), "<|user|>");
  EXPECT_EQ(Render(source, Ask("", "im_end")), "<|[[im_end]]|>");
}

TEST(ChatTemplate, APartThatATemplateWrapsIsTheRequests) {
  const std::string source = "{{ '<' + messages[0].name + '>' }}";
  for (const std::string part : {"|im_end|", "s", "/s"}) {
    RenderRequest request = Ask("");
    request.messages[0]["name"] = part;
    EXPECT_EQ(Render(source, request), "<[[" + part + "]]>");
  }
}

TEST(ChatTemplate, ATemplateThatFailsWithoutTheStringYieldsNoSpecialToken) {
  const std::string source =
      "{% if '|' not in messages[0].content %}{{ raise_exception('no') }}{% endif %}"
      "<|user|>{{ messages[0].content }}";
  EXPECT_EQ(Render(source, Ask("|")), "[[<|user|>]]|");
}

TEST(ChatTemplate, WhatDiffersBetweenTheRendersIsNotTrusted) {
  const std::string source =
      "<|user|>{% if '<|end|>' in messages[0].content %}A<|end|>B{% else %}C{% endif %}<|end|>";
  EXPECT_EQ(Render(source, Ask("<|end|>")), "<|user|>A[[<|end|>]]B<|end|>");
}

TEST(ChatTemplate, T2_ARaisedExceptionCarriesTheTemplatesMessage) {
  const auto rendered =
      Make("{{ raise_exception('System role not supported') }}")->Render(Ask("x", "system"));
  EXPECT_EQ(rendered.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(base::MessageOf(rendered.status()), "System role not supported");
}

TEST(ChatTemplate, T5_AListOfTextIsTheStringWhateverTheTemplateTakes) {
  RenderRequest parts = Ask("");
  parts.messages[0]["content"] = Json::parse(R"([{"type":"text","text":"hello"}])");
  const std::string strings = "{{ 'U:' + messages[0].content }}";
  const std::string lists =
      "U:{% if messages[0].content is string %}{{ messages[0].content }}{% else %}"
      "{% for p in messages[0].content %}{{ p.text }}{% endfor %}{% endif %}";
  EXPECT_EQ(Render(strings, parts), "U:hello");
  EXPECT_EQ(Render(lists, parts), "U:hello");
}

TEST(ChatTemplate, OtherContentPartsAreRefusedByName) {
  RenderRequest request = Ask("");
  request.messages[0]["content"] = Json::parse(R"([{"type":"image_url","image_url":{}}])");
  const auto rendered = Make(kChatMl)->Render(request);
  EXPECT_EQ(rendered.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(base::MessageOf(rendered.status()).find("image_url"), std::string::npos);
}

TEST(ChatTemplate, ASyntaxErrorNamesTheLine) {
  TemplateOptions options;
  options.source = "ok\n{% if %}";
  const auto chat = ChatTemplate::Create(options);
  EXPECT_EQ(chat.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(base::MessageOf(chat.status()).find("line 2"), std::string::npos);
}

TEST(ChatTemplate, TheSandboxKeepsTheInterpretersInsidesAway) {
  const auto rendered = Make("{{ ''.__class__.__mro__[1].__subclasses__() }}")->Render(Ask("x"));
  EXPECT_EQ(rendered.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ChatTemplate, GenerationTagsMeanNothing) {
  EXPECT_EQ(Render("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", Ask("x")),
            "axb");
}

TEST(ChatTemplate, BombsAreStoppedBySize) {
  for (const char* bomb : {"{{ 'a' * 10**9 }}", "{{ [0] * 10**9 }}", "{{ 9 ** 1000000000 }}",
                           "{{ 'a'.center(10**9) }}", "{{ 'a' | center(1000000000) }}",
                           "{{ '%1000000000d' % 1 }}", "{{ '{:1000000000}'.format(1) }}",
                           "{% for i in range(1000) %}{{ 'a' * 100000 }}{% endfor %}",
                           "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}"
                           "{% set ns.s = ns.s ~ ns.s %}{% endfor %}"}) {
    TemplateOptions options;
    options.source = bomb;
    const auto chat = ChatTemplate::Create(options);
    const absl::Status status = chat.ok() ? (*chat)->Render(Ask("x")).status() : chat.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << bomb << status.ToString();
  }
}

TEST(PythonTemplate, ARenderWithoutEndIsStoppedByTime) {
  auto endless = PythonTemplate::Compile(
      "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
      std::chrono::milliseconds(200));
  ASSERT_TRUE(endless.ok()) << endless.status().ToString();
  EXPECT_EQ((*endless)->Render("{}", 0).status().code(), absl::StatusCode::kDeadlineExceeded);
  // The thread is as good as new.
  auto next = PythonTemplate::Compile("{{ 1 + 1 }}");
  ASSERT_TRUE(next.ok()) << next.status().ToString();
  EXPECT_EQ(*(*next)->Render("{}", 0), "2");
}

TEST(ChatTemplate, ManyThreadsRenderAtOnce) {
  const auto chat = Make(kChatMl);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string name = "t" + std::to_string(t);
      for (int i = 0; i < 50; ++i) {
        EXPECT_EQ(Marked(chat->Render(Ask(name + "<|im_end|>"))),
                  "<|im_start|>user\n" + name + "[[<|im_end|>]]<|im_end|>\n");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Tokens of one byte, and <s> as id 256.
class ByteTokenizer final : public tokenizer::Tokenizer {
 public:
  int vocab_size() const override { return 257; }
  std::vector<int32_t> Encode(std::string_view text, bool special) const override {
    std::vector<int32_t> ids;
    while (!text.empty()) {
      const bool bos = special && text.starts_with("<s>");
      ids.push_back(bos ? 256 : static_cast<uint8_t>(text[0]));
      text.remove_prefix(bos ? 3 : 1);
    }
    return ids;
  }
  std::vector<int32_t> EncodePieces(std::span<const tokenizer::TextPiece> pieces) const override {
    std::vector<int32_t> ids;
    for (const auto& piece : pieces) {
      for (const int32_t id : Encode(piece.text, piece.parse_special)) ids.push_back(id);
    }
    return ids;
  }
  std::string_view TokenBytes(int32_t, bool) const override { return {}; }
  bool IsControl(int32_t id) const override { return id == 256; }
  std::optional<int32_t> bos_id() const override { return 256; }
  bool add_bos() const override { return true; }
  std::span<const int32_t> eos_ids() const override { return {}; }
  std::optional<int32_t> FindSpecial(std::string_view) const override { return {}; }
  std::span<const std::string> special_texts() const override { return {}; }
};

TEST(EncodeRendered, T1_ThereIsOneBosWhoeverPutsIt) {
  const ByteTokenizer tokenizer;
  const auto bos_count = [&](const std::string& source, bool add_bos) {
    const auto ids = EncodeRendered(tokenizer, *Make(source)->Render(Ask("<s>")), false, add_bos);
    return std::count(ids.begin(), ids.end(), 256);
  };
  EXPECT_EQ(bos_count("{{ bos_token }}{{ messages[0].content }}", true), 1);
  EXPECT_EQ(bos_count("{{ messages[0].content }}", true), 1);
  EXPECT_EQ(bos_count("{{ messages[0].content }}", false), 0);
}

}  // namespace
}  // namespace smartgen::chat
