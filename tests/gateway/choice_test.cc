#include "gateway/stream/choice.h"

#include <gmock/gmock.h>

#include "tests/gateway/tiny_model.h"

namespace smartgen::gateway {
namespace {

using namespace testing;  // NOLINT: the tiny model's ids

class ChoiceTest : public ::testing::Test {
 protected:
  Choice Make(std::vector<std::string> stop = {}, int min_tokens = 0, bool logprobs = false) {
    Choice::Options options;
    options.tokenizer = tokenizer_.get();
    options.stop = std::move(stop);
    options.min_tokens = min_tokens;
    options.eos_ids = {kEos};
    options.logprobs = logprobs;
    return Choice(std::move(options));
  }
  // All text of these tokens; ends by length where no stop string was met.
  std::string Run(Choice& choice, const std::vector<int32_t>& ids) {
    std::string text;
    for (const int32_t id : ids) {
      const std::string part = choice.Push({id, -1, {}}).text;
      EXPECT_TRUE(tokenizer::IsValidUtf8(part));
      text += part;
      if (choice.stopped()) return text;
    }
    return text + choice.Finish(FinishReason::kLength).text;
  }
  std::unique_ptr<const tokenizer::Tokenizer> tokenizer_ = TinyTokenizer();
};

TEST_F(ChoiceTest, S1_NothingOfAStopStringSplitOverTokensIsSent) {
  Choice choice = Make({"</end>"});
  EXPECT_EQ(Run(choice, {'a', kLessSlash, kEn, kDGreater, 'b'}), "a");
  EXPECT_TRUE(choice.stopped());
  EXPECT_EQ(choice.reason(), FinishReason::kStop);
}

TEST_F(ChoiceTest, S1_TheBeginningOfAStopStringIsSentWhenTheLengthEndsIt) {
  Choice choice = Make({"</end>"});
  EXPECT_EQ(Run(choice, {'a', kLessSlash, kEn}), "a</en");
  EXPECT_FALSE(choice.stopped());
  EXPECT_EQ(choice.reason(), FinishReason::kLength);
}

TEST_F(ChoiceTest, S3_CharactersSplitOverTokensComeOutWhole) {
  const std::string text = "a\xf0\x9f\x98\x80\xe4\xb8\xad z";
  Choice choice = Make();
  EXPECT_EQ(Run(choice, Bytes(text)), text);
}

TEST_F(ChoiceTest, S3_AHalfCharacterAtTheEndIsReplaced) {
  Choice choice = Make();
  EXPECT_EQ(Run(choice, {'a', 0xf0, 0x9f}), "a\xef\xbf\xbd");
}

TEST_F(ChoiceTest, EndOfTextHasNoText) {
  Choice choice = Make();
  EXPECT_EQ(choice.Push({'a', 0, {}}).text, "a");
  EXPECT_TRUE(choice.Push({kEos, 0, {}}).empty());
  EXPECT_TRUE(choice.saw_eos());
  EXPECT_EQ(choice.tokens().size(), 2u);
}

TEST_F(ChoiceTest, StopStringsWaitForMinTokens) {
  Choice choice = Make({"x"}, 2);
  EXPECT_EQ(Run(choice, {'x', 'x', 'a', 'x'}), "xxa");
  EXPECT_TRUE(choice.stopped());
}

TEST_F(ChoiceTest, LogprobsComeWithTheirText) {
  Choice choice = Make({}, 0, true);
  EXPECT_TRUE(choice.Push({0xc3, -1, {}}).logprobs.empty());
  const auto out = choice.Push({0xa9, -2, {}});
  EXPECT_EQ(out.text, "\xc3\xa9");
  ASSERT_EQ(out.logprobs.size(), 2u);
  EXPECT_EQ(out.logprobs[0].chosen.bytes, "\xc3");
  EXPECT_EQ(out.logprobs[1].chosen.logprob, -2);
}

TEST_F(ChoiceTest, LogprobsOfAStopStringAreNotSent) {
  Choice choice = Make({"</end>"}, 0, true);
  size_t count = 0;
  for (const int32_t id : {int32_t{'a'}, kLessSlash, kEn, kDGreater}) {
    count += choice.Push({id, -1, {}}).logprobs.size();
  }
  EXPECT_EQ(count, 1u);
}

TEST_F(ChoiceTest, TextOffsetsCountCharacters) {
  Choice choice = Make({}, 0, true);
  choice.Push({0xc3, -1, {}});
  choice.Push({0xa9, -1, {}});
  const auto out = choice.Push({'b', -1, {}});
  ASSERT_EQ(out.logprobs.size(), 1u);
  EXPECT_EQ(out.logprobs[0].text_offset, 1);
}

}  // namespace
}  // namespace smartgen::gateway
