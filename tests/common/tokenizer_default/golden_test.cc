// Against reference tokenizers on the default model's vocabulary; see tests/golden.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <random>

#include "common/model/model.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace smartgen::tokenizer {
namespace {

using nlohmann::json;

json LoadGolden(const std::string& name) {
  std::ifstream file(std::string(SMARTGEN_TEST_DATA "/") + name);
  EXPECT_TRUE(file.good()) << name;
  return json::parse(file);
}

// The default model's tokenizer, opened once.
const Tokenizer& DefaultTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    const char* given = std::getenv("SMARTGEN_TEST_MODEL");
    const auto path = model::ResolveModelPath(given != nullptr ? given : "smollm2-135m");
    if (!path.ok()) {
      ADD_FAILURE() << path.status().ToString()
                    << "; fetch it with: smartgen fetch-model smollm2-135m";
      std::abort();
    }
    const auto opened = model::Model::Open(*path);
    if (!opened.ok()) {
      ADD_FAILURE() << opened.status().ToString();
      std::abort();
    }
    auto created = Tokenizer::Create((*opened)->tokenizer_data());
    if (!created.ok()) {
      ADD_FAILURE() << created.status().ToString();
      std::abort();
    }
    return *std::move(created);
  }();
  return *tokenizer;
}

std::vector<TokenId> Ids(const json& list) { return list.get<std::vector<TokenId>>(); }

TEST(TokenizerGolden, EncodesEveryCase) {
  const json golden = LoadGolden("tokenizer_smol.json");
  ASSERT_FALSE(golden["encode"].empty());
  for (const json& c : golden["encode"]) {
    const std::string text = c["text"];
    EXPECT_EQ(DefaultTokenizer().Encode(text, false), Ids(c["ids"])) << c["name"];
    const json& special = c.contains("ids_special") ? c["ids_special"] : c["ids"];
    EXPECT_EQ(DefaultTokenizer().Encode(text, true), Ids(special)) << c["name"];
  }
}

TEST(TokenizerGolden, DecodesWhatItEncoded) {
  const json golden = LoadGolden("tokenizer_smol.json");
  for (const json& c : golden["encode"]) {
    const std::string want = c.contains("lossy") ? c["roundtrip"] : c["text"];
    EXPECT_EQ(DefaultTokenizer().Decode(Ids(c["ids"]), true), want) << c["name"];
  }
}

TEST(TokenizerGolden, DetokenisesEveryCaseAsAStream) {
  const json golden = LoadGolden("tokenizer_smol.json");
  ASSERT_FALSE(golden["detokenise"].empty());
  for (const json& c : golden["detokenise"]) {
    const std::vector<TokenId> ids = Ids(c["ids"]);
    IncrementalDetokenizer stream(&DefaultTokenizer(), /*special=*/true);
    for (size_t i = 0; i < ids.size(); ++i) {
      std::string hex;
      for (const char byte : DefaultTokenizer().TokenBytes(ids[i], true)) {
        hex += fmt::format("{:02x}", static_cast<uint8_t>(byte));
      }
      EXPECT_EQ(hex, c["hex"][i]) << c["name"] << " token " << i;
      EXPECT_EQ(stream.Push(ids[i]), c["stream"][i]) << c["name"] << " token " << i;
    }
    EXPECT_EQ(stream.Flush(), c["stream"][ids.size()]) << c["name"];
    EXPECT_EQ(DefaultTokenizer().Decode(ids, true), c["text"]) << c["name"];
  }
}

TEST(TokenizerGolden, PiecesWithoutSpecialsEncodeAsTheWholeText) {
  const json golden = LoadGolden("tokenizer_smol.json");
  std::mt19937 random(7);
  for (const json& c : golden["encode"]) {
    const std::string text = c["text"];
    std::vector<TextPiece> pieces;
    for (size_t pos = 0; pos < text.size();) {
      const size_t length = 1 + random() % 9;
      pieces.push_back({std::string_view(text).substr(pos, length), false});
      pos += length;
    }
    EXPECT_EQ(DefaultTokenizer().EncodePieces(pieces), Ids(c["ids"])) << c["name"];
  }
}

TEST(TokenizerGolden, KnowsTheModelsSpecialTokens) {
  const Tokenizer& tokenizer = DefaultTokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), 49152);
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_FALSE(tokenizer.add_bos());
  EXPECT_EQ(tokenizer.FindSpecial("<|im_end|>"), 2);
  EXPECT_EQ(tokenizer.special_texts().size(), 17u);
  EXPECT_TRUE(tokenizer.IsControl(0));
  EXPECT_FALSE(tokenizer.IsControl(17));
}

// Not a benchmark: catches only what is off by an order of magnitude.
TEST(TokenizerGolden, MegabytesOfAnyTextTakeSeconds) {
  std::string prose;
  while (prose.size() < (1u << 20))
    prose += "The quick brown fox jumps over 13 lazy dogs, don't it?\n";
  const std::string texts[] = {prose,
                               std::string(1 << 20, 'a'),
                               std::string(1 << 20, ' '),
                               std::string(1 << 20, '<'),
                               std::string(1 << 20, '\xFF'),
                               std::string(1 << 20, '=')};
  for (const std::string& text : texts) {
    const auto start = std::chrono::steady_clock::now();
    const size_t count = DefaultTokenizer().Encode(text, true).size();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("%.8s... %zu bytes: %zu tokens, %.1f ms\n", text[0] == '\xFF' ? "ff" : text.c_str(),
                text.size(), count, took.count() * 1e3);
    EXPECT_LT(took.count(), 60.0);  // quadratic would be hours
  }
}

}  // namespace
}  // namespace smartgen::tokenizer
