#include "common/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "common/tokenizer/byte_level.h"
#include "nlohmann/json.hpp"

namespace smartgen::tokenizer {
namespace {

using nlohmann::json;
using Ids = std::vector<TokenId>;

// Bytes 0-255 as their own ids, merges on top, then the specials.
model::TokenizerData TinyGguf(const std::string& pre = "gpt-2") {
  model::TokenizerData data;
  data.ggml_model = "gpt2";
  data.ggml_pre = pre;
  for (int b = 0; b < 256; ++b) data.tokens.push_back(ByteLevelChar(static_cast<uint8_t>(b)));
  data.merges = {"a a", "aa aa", "h e", "l l", "he ll", "hell o"};
  for (const char* token : {"aa", "aaaa", "he", "ll", "hell", "hello"})
    data.tokens.push_back(token);
  data.types.assign(data.tokens.size(), 1);
  data.tokens.insert(data.tokens.end(), {"<|end|>", "<tool>"});
  data.types.insert(data.types.end(), {3, 4});
  return data;
}
constexpr TokenId kAa = 256, kAaaa = 257, kHello = 261, kEnd = 262, kTool = 263;

json TinyJson() {
  const model::TokenizerData gguf = TinyGguf();
  json vocab = json::object();
  for (size_t id = 0; id < 262; ++id) vocab[gguf.tokens[id]] = id;
  json merges = json::array();
  for (const std::string& merge : gguf.merges) merges.push_back(merge);
  return {
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"added_tokens",
       {{{"id", 262}, {"content", "<|end|>"}, {"special", true}},
        {{"id", 263}, {"content", "<tool>"}, {"special", false}}}}};
}

std::unique_ptr<Tokenizer> Make(const model::TokenizerData& data) {
  auto tokenizer = Tokenizer::Create(data);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::unique_ptr<Tokenizer> Make(const json& tokenizer_json) {
  model::TokenizerData data;
  data.tokenizer_json = tokenizer_json.dump();
  return Make(data);
}

absl::Status ErrorOf(const json& tokenizer_json) {
  model::TokenizerData data;
  data.tokenizer_json = tokenizer_json.dump();
  return Tokenizer::Create(data).status();
}

TEST(Tokenizer, MergesTheStrongestPairFirst) {
  const auto tokenizer = Make(TinyGguf());
  EXPECT_EQ(tokenizer->Encode("hello", false), Ids{kHello});
  EXPECT_EQ(tokenizer->Encode("aaaaaaa", false), (Ids{kAaaa, kAa, 'a'}));
}

TEST(Tokenizer, LongWordsMergeAsShortOnesDo) {
  const auto tokenizer = Make(TinyGguf());
  for (const size_t length : {47u, 48u, 49u, 50u, 51u, 1000003u}) {
    Ids want(length / 4, kAaaa);
    if (length % 4 >= 2) want.push_back(kAa);
    if (length % 2 == 1) want.push_back('a');
    EXPECT_EQ(tokenizer->Encode(std::string(length, 'a'), false), want) << length;
  }
}

TEST(Tokenizer, ControlTokensAreFoundOnlyWhereAsked) {
  const auto tokenizer = Make(TinyGguf());
  EXPECT_EQ(tokenizer->Encode("<|end|>", true), Ids{kEnd});
  EXPECT_EQ(tokenizer->Encode("<|end|>", false), (Ids{'<', '|', 'e', 'n', 'd', '|', '>'}));
}

TEST(Tokenizer, UserDefinedTokensAreFoundAlways) {
  const auto tokenizer = Make(TinyGguf());
  EXPECT_EQ(tokenizer->Encode("<tool>", true), Ids{kTool});
  EXPECT_EQ(tokenizer->Encode("<tool>", false), Ids{kTool});
}

TEST(Tokenizer, UserDefinedTokensOfTheChatTemplateAreFoundOnlyWhereAsked) {
  const Ids spelt{'<', 't', 'o', 'o', 'l', '>'};
  for (const bool gguf : {true, false}) {
    model::TokenizerData data = TinyGguf();
    if (!gguf) {
      data = {};
      data.tokenizer_json = TinyJson().dump();
    }
    data.chat_template = "{% for m in messages %}<tool>{{ m.content }}<|end|>{% endfor %}";
    const auto tokenizer = Make(data);
    EXPECT_EQ(tokenizer->Encode("<tool>", true), Ids{kTool});
    EXPECT_EQ(tokenizer->Encode("<tool>", false), spelt);
    EXPECT_EQ(
        std::count(tokenizer->special_texts().begin(), tokenizer->special_texts().end(), "<tool>"),
        1);
    // Such a token is shown like any other.
    EXPECT_FALSE(tokenizer->IsControl(kTool));
    EXPECT_EQ(tokenizer->TokenBytes(kTool, false), "<tool>");
  }
}

TEST(Tokenizer, WhiteSpaceTokensOfTheChatTemplateAreFoundAlways) {
  model::TokenizerData data = TinyGguf();
  data.tokens.push_back("\n\n");
  data.types.push_back(4);
  data.chat_template = "<tool>\n\n";
  EXPECT_EQ(Make(data)->Encode("\n\n", false), Ids{kTool + 1});
}

TEST(Tokenizer, AWordMaySpanPiecesAControlTokenMayNot) {
  const auto tokenizer = Make(TinyGguf());
  const TextPiece word[] = {{"hel", true}, {"lo", false}};
  EXPECT_EQ(tokenizer->EncodePieces(word), Ids{kHello});
  const TextPiece halves[] = {{"<|e", true}, {"nd|>", true}};
  EXPECT_EQ(tokenizer->EncodePieces(halves), (Ids{'<', '|', 'e', 'n', 'd', '|', '>'}));
  const TextPiece mixed[] = {{"<|end|>", false}, {"<|end|>", true}};
  EXPECT_EQ(tokenizer->EncodePieces(mixed), (Ids{'<', '|', 'e', 'n', 'd', '|', '>', kEnd}));
}

TEST(Tokenizer, InvalidUtf8IsEncodedByteByByte) {
  const auto tokenizer = Make(TinyGguf());
  EXPECT_EQ(tokenizer->Encode("hello\xFF\xE2\x82 hello", false),
            (Ids{kHello, 0xFF, 0xE2, 0x82, ' ', kHello}));
}

TEST(Tokenizer, ControlBytesShowOnlyWhereAsked) {
  const auto tokenizer = Make(TinyGguf());
  EXPECT_EQ(tokenizer->TokenBytes(kEnd, true), "<|end|>");
  EXPECT_EQ(tokenizer->TokenBytes(kEnd, false), "");
  EXPECT_EQ(tokenizer->TokenBytes(-1, true), "");
  EXPECT_EQ(tokenizer->TokenBytes(264, true), "");
  EXPECT_EQ(tokenizer->TokenBytes(' ', true), " ");
}

TEST(Tokenizer, NoMergeMakesAControlToken) {
  model::TokenizerData data = TinyGguf();
  data.types[kHello] = 3;
  const auto tokenizer = Make(data);
  EXPECT_EQ(tokenizer->Encode("hello", false), (Ids{260, 'o'}));
  EXPECT_EQ(tokenizer->Encode("hello", true), Ids{kHello});
}

TEST(Tokenizer, TokenizerJsonEncodesAsGgufDoes) {
  const auto gguf = Make(TinyGguf());
  const auto from_json = Make(TinyJson());
  for (const char* text : {"hello aaaa", "<|end|>x<tool>", "it's 12  3\n\n x", ""}) {
    EXPECT_EQ(from_json->Encode(text, true), gguf->Encode(text, true)) << text;
    EXPECT_EQ(from_json->Encode(text, false), gguf->Encode(text, false)) << text;
  }
}

TEST(Tokenizer, Qwen2NormalisesToNfc) {
  EXPECT_EQ(Make(TinyGguf("qwen2"))->Encode("e\xCC\x81", false), (Ids{0xC3, 0xA9}));
  EXPECT_EQ(Make(TinyGguf("gpt-2"))->Encode("e\xCC\x81", false), (Ids{'e', 0xCC, 0x81}));
  json nfc = TinyJson();
  nfc["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(Make(nfc)->Encode("e\xCC\x81", false), (Ids{0xC3, 0xA9}));
}

TEST(Tokenizer, IgnoreMergesTakesWholeWords) {
  json data = TinyJson();
  data["model"]["vocab"]["xyz"] = 264;
  EXPECT_EQ(Make(data)->Encode("xyz", false), (Ids{'x', 'y', 'z'}));
  data["model"]["ignore_merges"] = true;
  EXPECT_EQ(Make(data)->Encode("xyz", false), Ids{264});
}

TEST(Tokenizer, SplitAndDigitsSectionsAreFollowed) {
  json data = TinyJson();
  data["model"]["vocab"]["11"] = 264;
  data["model"]["merges"].push_back({"1", "1"});
  EXPECT_EQ(Make(data)->Encode("11", false), Ids{264});
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  data["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, byte_level}}};
  EXPECT_EQ(Make(data)->Encode("11", false), (Ids{'1', '1'}));
  data["pre_tokenizer"]["pretokenizers"][0] = {
      {"type", "Split"}, {"pattern", {{"Regex", "\\s+"}}}, {"behavior", "Removed"}};
  EXPECT_EQ(Make(data)->Encode("11 \t11", false), (Ids{264, 264}));
}

TEST(Tokenizer, MongolianVowelSeparatorIsNoWhiteSpace) {
  json data = TinyJson();
  data["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "\\s"}}}, {"behavior", "Removed"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  EXPECT_EQ(Make(data)->Encode("a\xE1\xA0\x8E\xC2\xA0", false), (Ids{'a', 0xE1, 0xA0, 0x8E}));
}

TEST(Tokenizer, BosComesFromThePostProcessorWhereNothingElseSaysIt) {
  json data = TinyJson();
  data["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", {{{"SpecialToken", {{"id", "<|end|>"}, {"type_id", 0}}}}}}};
  EXPECT_TRUE(Make(data)->add_bos());
  EXPECT_EQ(Make(data)->bos_id(), kEnd);
  EXPECT_FALSE(Make(TinyJson())->add_bos());
}

TEST(Tokenizer, UnknownKindsAreRefusedWithWhatIsSupported) {
  model::TokenizerData gguf = TinyGguf("klingon");
  EXPECT_EQ(Tokenizer::Create(gguf).status().code(), absl::StatusCode::kUnimplemented);
  gguf = TinyGguf();
  gguf.ggml_model = "llama";
  EXPECT_EQ(Tokenizer::Create(gguf).status().code(), absl::StatusCode::kUnimplemented);
  json data = TinyJson();
  data["model"]["type"] = "Unigram";
  EXPECT_EQ(ErrorOf(data).code(), absl::StatusCode::kUnimplemented);
  data = TinyJson();
  data["normalizer"] = {{"type", "Lowercase"}};
  EXPECT_EQ(ErrorOf(data).code(), absl::StatusCode::kUnimplemented);
}

TEST(Tokenizer, MalformedDataIsRefused) {
  model::TokenizerData gguf = TinyGguf();
  gguf.merges.push_back("q zz");
  EXPECT_EQ(Tokenizer::Create(gguf).status().code(), absl::StatusCode::kInvalidArgument);
  gguf = TinyGguf();
  gguf.types.pop_back();
  EXPECT_EQ(Tokenizer::Create(gguf).status().code(), absl::StatusCode::kInvalidArgument);
  gguf = TinyGguf();
  gguf.eos_ids = {264};
  EXPECT_EQ(Tokenizer::Create(gguf).status().code(), absl::StatusCode::kInvalidArgument);
  json data = TinyJson();
  data["model"]["vocab"]["far"] = 4000000;
  EXPECT_EQ(ErrorOf(data).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorOf(json::array()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Tokenizer::Create({}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Utf8, BrokenSequencesAreReplacedAsPythonDoesIt) {
  const std::string bad = "\xEF\xBF\xBD";
  const std::pair<std::string, std::string> cases[] = {{"a\xE2\x82x", "a" + bad + "x"},
                                                       {"\xED\xA0\x80", bad + bad + bad},
                                                       {"\xF0\x90\x8Cx", bad + "x"},
                                                       {"\xC0\x80", bad + bad},
                                                       {"\xF5\x80", bad + bad},
                                                       {"\xE2\x82", bad},
                                                       {"\xF4\x90\x80\x80", bad + bad + bad + bad}};
  for (auto [bytes, want] : cases) {
    std::string whole = bytes;
    EXPECT_EQ(TakeCompleteUtf8(whole, true), want);
    std::string pending;
    std::string streamed;
    for (const char c : bytes) {
      pending += c;
      streamed += TakeCompleteUtf8(pending, false);
    }
    EXPECT_EQ(streamed + TakeCompleteUtf8(pending, true), want);
  }
}

TEST(Utf8, HalfACharacterIsHeldBack) {
  std::string bytes = "x\xE2\x82";
  EXPECT_EQ(TakeCompleteUtf8(bytes, false), "x");
  EXPECT_EQ(bytes, "\xE2\x82");
  bytes += "\xAC";
  EXPECT_EQ(TakeCompleteUtf8(bytes, false), "\xE2\x82\xAC");
  EXPECT_TRUE(bytes.empty());
}

TEST(Tokenizer, RandomBytesComeBackFromTheirTokens) {
  const auto tokenizer = Make(TinyGguf());
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (size_t n = random() % 100; n > 0; --n) {
      text += random() % 4 == 0 ? static_cast<char>(random()) : "ahelo <|\n1"[random() % 10];
    }
    std::string back;
    for (const TokenId id : tokenizer->Encode(text, random() % 2)) {
      back += tokenizer->TokenBytes(id, true);
    }
    ASSERT_EQ(back, text);
  }
}

}  // namespace
}  // namespace smartgen::tokenizer
