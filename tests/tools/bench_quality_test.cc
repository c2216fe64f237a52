#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tools/bench/needle.h"
#include "tools/bench/quality_report.h"
#include "tools/bench/quality_summary.h"

namespace smartgen::tools::bench {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A token a byte, and BOS, which prompts begin with.
class ByteTokenizer : public tokenizer::Tokenizer {
 public:
  static constexpr tokenizer::TokenId kBos = 256;
  // Makes one token of the text, as a vocabulary with that word would.
  static constexpr std::string_view kWord = " is";
  static constexpr tokenizer::TokenId kWordId = 257;

  ByteTokenizer() {
    for (int i = 0; i < 256; ++i) bytes_.push_back(static_cast<char>(i));
  }
  int vocab_size() const override { return 258; }
  std::vector<tokenizer::TokenId> Encode(std::string_view text, bool) const override {
    if (text == kWord) return {kWordId};
    std::vector<tokenizer::TokenId> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::vector<tokenizer::TokenId> EncodePieces(
      std::span<const tokenizer::TextPiece>) const override {
    return {};
  }
  std::string_view TokenBytes(tokenizer::TokenId id, bool) const override {
    if (id == kWordId) return kWord;
    return id < 256 ? std::string_view(bytes_).substr(static_cast<size_t>(id), 1) : "";
  }
  bool IsControl(tokenizer::TokenId id) const override { return id == kBos; }
  std::optional<tokenizer::TokenId> bos_id() const override { return kBos; }
  bool add_bos() const override { return true; }
  std::span<const tokenizer::TokenId> eos_ids() const override { return {}; }
  std::optional<tokenizer::TokenId> FindSpecial(std::string_view) const override {
    return std::nullopt;
  }
  std::span<const std::string> special_texts() const override { return {}; }

 private:
  std::string bytes_;
};

std::vector<tokenizer::TokenId> Haystack(const ByteTokenizer& tokenizer, const std::string& text) {
  std::vector<tokenizer::TokenId> ids = {ByteTokenizer::kBos};
  const auto more = tokenizer.Encode(text, false);
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

std::string Repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(NeedleTest, IsAFunctionOfSeedAndIndex) {
  const Needle needle = MakeNeedle(7, 3);
  EXPECT_EQ(needle.Sentence(), MakeNeedle(7, 3).Sentence());
  EXPECT_NE(needle.number, MakeNeedle(7, 4).number);
  EXPECT_NE(needle.number, MakeNeedle(8, 3).number);
  EXPECT_EQ(needle.Sentence(),
            " The secret number of " + needle.place + " is " + needle.number + ".");
}

TEST(NeedleTest, NumbersHaveFiveDigits) {
  for (int i = 0; i < 1000; ++i) {
    const int number = std::stoi(MakeNeedle(1, i).number);
    EXPECT_GE(number, 10000);
    EXPECT_LE(number, 99999);
  }
}

TEST(NeedleTest, StandsAtItsDepthWhereNoSentenceEndsNearby) {
  const ByteTokenizer tokenizer;
  const auto haystack = Haystack(tokenizer, std::string(3000, 'x'));
  const Needle needle = MakeNeedle(1, 0);
  const auto sentence = static_cast<int64_t>(needle.Sentence().size());
  const auto question = static_cast<int64_t>(needle.Question().size());
  const int length = 1000;
  for (const double depth : {0.1, 0.5, 0.9, 1.0}) {
    const auto hidden = HideNeedle(needle, haystack, tokenizer, length, depth);
    ASSERT_TRUE(hidden.ok()) << hidden.status();
    EXPECT_EQ(hidden->prompt.size(), 1000u);
    EXPECT_EQ(hidden->position,
              std::llround(depth * static_cast<double>(length - sentence - question)));
    const std::span<const int32_t> prompt = hidden->prompt;
    EXPECT_EQ(tokenizer.Decode(prompt.subspan(static_cast<size_t>(hidden->position),
                                              static_cast<size_t>(sentence)),
                               false),
              needle.Sentence());
    EXPECT_EQ(tokenizer.Decode(prompt.last(static_cast<size_t>(question)), false),
              needle.Question());
    EXPECT_EQ(prompt[0], ByteTokenizer::kBos);
  }
}

TEST(NeedleTest, StandsBehindASentenceThatEndsNearby) {
  const ByteTokenizer tokenizer;
  // A sentence every 50 tokens, the first one behind BOS.
  const auto haystack = Haystack(tokenizer, Repeat(std::string(49, 'x') + ".", 100));
  const auto hidden = HideNeedle(MakeNeedle(1, 0), haystack, tokenizer, 1000, 0.5);
  ASSERT_TRUE(hidden.ok());
  EXPECT_EQ(hidden->position % 50, 1);
  EXPECT_EQ(hidden->prompt[static_cast<size_t>(hidden->position) - 1], '.');
}

TEST(NeedleTest, AtDepthZeroBosStaysInFront) {
  const ByteTokenizer tokenizer;
  const auto hidden =
      HideNeedle(MakeNeedle(1, 0), Haystack(tokenizer, std::string(900, 'x')), tokenizer, 500, 0);
  ASSERT_TRUE(hidden.ok());
  EXPECT_EQ(hidden->position, 1);
}

TEST(NeedleTest, TooShortAHaystackIsRefusedWithTheNumbers) {
  const ByteTokenizer tokenizer;
  const auto hidden = HideNeedle(MakeNeedle(1, 0), Haystack(tokenizer, "xx"), tokenizer, 500, 0.5);
  EXPECT_EQ(hidden.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(base::MessageOf(hidden.status())), HasSubstr("the 3 that there are"));
}

TEST(NeedleTest, OnlyTheNumberByItselfIsAnAnswer) {
  const Needle needle{"Lisbon", "48213"};
  EXPECT_TRUE(Answers(needle, " 48213."));
  EXPECT_TRUE(Answers(needle, "not 148213 but 48213"));
  EXPECT_FALSE(Answers(needle, " 482135"));
  EXPECT_FALSE(Answers(needle, " 148213"));
  EXPECT_FALSE(Answers(needle, " 4821"));
  EXPECT_FALSE(Answers(needle, ""));
}

TEST(QualityItemsTest, TextsForceWhatFollowsAndNeedlesTheAnswer) {
  const ByteTokenizer tokenizer;
  std::vector<profile::Cut> cuts;
  for (const char letter : {'a', 'b', 'c', 'd'}) {
    profile::Cut cut{.text = std::string(1, letter), .length = 300};
    cut.ids = Haystack(tokenizer, std::string(309, letter));
    cuts.push_back(std::move(cut));
  }
  ItemOptions options;
  options.lengths = {300};
  options.texts = {2};
  options.needles = {1};
  options.depths = {0.1, 0.9};
  options.continuation_tokens = 10;
  const auto items = MakeItems(options, cuts, tokenizer);
  ASSERT_TRUE(items.ok()) << items.status();
  ASSERT_EQ(items->size(), 4u);
  EXPECT_EQ((*items)[0].text, "a");
  EXPECT_EQ((*items)[1].text, "c") << "spread over the texts";
  EXPECT_EQ((*items)[0].prompt.size(), 300u);
  EXPECT_EQ((*items)[0].forced, std::vector<int32_t>(10, 'a'));
  for (const size_t i : {2u, 3u}) {
    const QualityItem& item = (*items)[i];
    ASSERT_TRUE(item.needle.has_value());
    EXPECT_EQ(item.depth, options.depths[i - 2]);
    EXPECT_EQ(item.prompt.size(), 300u);
    EXPECT_EQ(tokenizer.Decode(item.forced, false), " is " + item.needle->number);
  }
}

TEST(QualityItemsTest, ALengthWithoutATextIsRefused) {
  const ByteTokenizer tokenizer;
  ItemOptions options;
  options.lengths = {300};
  options.texts = {1};
  options.needles = {0};
  const auto items = MakeItems(options, {}, tokenizer);
  EXPECT_EQ(items.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(base::MessageOf(items.status())), HasSubstr("at least 364 tokens"));
}

Score MakeScore(std::vector<double> logprobs, std::vector<int32_t> likeliest,
                std::string answer = "") {
  Score score;
  score.logprobs = std::move(logprobs);
  score.likeliest = std::move(likeliest);
  score.answer = std::move(answer);
  return score;
}

// Dense; quest at 10 %, at 100 %. Two texts of different lengths and one needle.
QualityMeasurements Measured() {
  QualityMeasurements m;
  m.model.name = "tiny";
  m.model.compute = "f32";
  m.variants = {{}, {"quest", 0.1}, {"quest", 1}};
  QualityResult text;
  text.item.text = "a";
  text.item.length = 1000;
  text.scores = {MakeScore({-1, -3}, {5, 6}), MakeScore({-2, -4}, {5, 7}),
                 MakeScore({-1, -3.001}, {5, 6})};
  m.results.push_back(text);
  text.item.length = 2000;
  text.scores = {MakeScore({-2, -2}, {1, 2}), MakeScore({-2, -1}, {1, 2}),
                 MakeScore({-2, -2}, {1, 2})};
  m.results.push_back(text);
  QualityResult needle = text;
  needle.item.needle = Needle{"Lisbon", "48213"};
  needle.scores = {MakeScore({-0.5}, {1}, " 48213."), MakeScore({-3}, {4}, " 11111."),
                   MakeScore({-0.5}, {1}, " 48213.")};
  m.results.push_back(needle);
  m.planned = 3;
  return m;
}

TEST(QualitySummaryTest, DifferencesAreMeansOverItemsOfMeansOverTokens) {
  const QualitySummary s = SummarizeQuality(Measured(), 1, 0);
  // Texts: 3 against 2, and 1.5 against 2: +1 and -0.5.
  EXPECT_EQ(s.texts.items, 2);
  EXPECT_DOUBLE_EQ(s.texts.nll, 2.25);
  EXPECT_DOUBLE_EQ(s.texts.difference, 0.25);
  EXPECT_DOUBLE_EQ(s.texts.worst, 1);
  // Deviations of 0.75: variance 1.125, over two items.
  EXPECT_DOUBLE_EQ(s.texts.standard_error, 0.75);
  EXPECT_DOUBLE_EQ(*s.texts.same_first, 0.75);
  EXPECT_DOUBLE_EQ(s.needles.difference, 2.5);
}

TEST(QualitySummaryTest, ALengthCountsItsOwnItemsOnly) {
  EXPECT_THAT(LengthsOf(Measured()), ElementsAre(1000, 2000));
  EXPECT_DOUBLE_EQ(SummarizeQuality(Measured(), 1, 1000).texts.difference, 1);
  EXPECT_DOUBLE_EQ(SummarizeQuality(Measured(), 1, 2000).texts.difference, -0.5);
  EXPECT_EQ(SummarizeQuality(Measured(), 1, 1000).needles.items, 0);
}

TEST(QualitySummaryTest, NeedlesAreCountedAgainstThoseThatDenseFound) {
  const QualitySummary lost = SummarizeQuality(Measured(), 1, 0);
  EXPECT_EQ(lost.found, 0);
  EXPECT_EQ(lost.dense_found, 1);
  EXPECT_EQ(lost.found_of_dense_found, 0);
  EXPECT_EQ(lost.same_answer, 0);
  const QualitySummary kept = SummarizeQuality(Measured(), 2, 0);
  EXPECT_EQ(kept.found_of_dense_found, 1);
  EXPECT_EQ(kept.same_answer, 1);
}

TEST(QualitySummaryTest, FailedScoresCountForNothingButAreCounted) {
  QualityMeasurements m = Measured();
  m.results[0].scores[1].status = base::Internal("lost");
  m.results[1].scores[0].status = base::Internal("the reference was lost");
  const QualitySummary s = SummarizeQuality(m, 1, 0);
  EXPECT_EQ(s.failed, 2);
  EXPECT_EQ(s.texts.items, 0);
  EXPECT_EQ(s.needles.items, 1);
}

TEST(QualitySummaryTest, TheIdentityErrorIsTheLargestOfBudgetsThatSelectNothingAway) {
  const auto error = IdentityError(Measured());
  ASSERT_TRUE(error.has_value());
  EXPECT_THAT(*error, DoubleNear(0.0005, 1e-12));  // 0.001 in one of two tokens
  QualityMeasurements none = Measured();
  none.variants[2].budget = 0.5;
  EXPECT_FALSE(IdentityError(none).has_value());
}

TEST(QualitySummaryTest, NothingMeasuredIsNoIdentity) {
  QualityMeasurements failed = Measured();
  for (auto& result : failed.results) result.scores[2].status = base::Internal("lost");
  EXPECT_FALSE(IdentityError(failed).has_value());
}

TEST(QualityReportTest, JsonHasEveryCellAndEveryScore) {
  QualitySetting setting;
  setting.command = "smartgen bench quality";
  const auto json = QualityJson(setting, Measured());
  EXPECT_EQ(json["cells"].size(), 9u) << "three variants at 1000, 2000 and all";
  EXPECT_EQ(json["cells"][7]["selector"], "quest");
  EXPECT_FALSE(json["cells"][7].contains("prompt_tokens")) << "all lengths";
  EXPECT_DOUBLE_EQ(json["cells"][7]["texts"]["nll_minus_dense"], 0.25);
  EXPECT_EQ(json["cells"][7]["needles"]["dense_found"], 1);
  ASSERT_EQ(json["items"].size(), 3u);
  EXPECT_EQ(json["items"][2]["kind"], "needle");
  EXPECT_EQ(json["items"][2]["scores"][1]["found"], false);
  EXPECT_EQ(json["items"][0]["scores"][0]["logprobs"], nlohmann::ordered_json({-1.0, -3.0}));
}

TEST(QualityReportTest, EveryOutputSaysWhichParametersTheSelectorsHad) {
  QualitySetting setting;
  setting.has_skew = true;
  const std::string words = DescribeParameters(setting);
  EXPECT_THAT(words, HasSubstr("random hash weights"));
  EXPECT_THAT(words, HasSubstr("trained skew"));
  EXPECT_THAT(RenderQuality(setting, Measured()), HasSubstr(words));
  EXPECT_EQ(QualityJson(setting, Measured())["selector_parameters"]["in_words"], words);
  for (const auto& [name, svg] : QualityPlots(setting, Measured())) {
    EXPECT_THAT(svg, HasSubstr("trained skew")) << name;
  }
}

TEST(QualityReportTest, WhatWasBrokenOffSaysSo) {
  EXPECT_EQ(QualityJson({}, Measured())["complete"], true);
  EXPECT_THAT(RenderQuality({}, Measured()), Not(HasSubstr("BROKEN OFF")));
  QualityMeasurements m = Measured();
  m.planned = 5;
  EXPECT_EQ(QualityJson({}, m)["complete"], false);
  EXPECT_THAT(RenderQuality({}, m), HasSubstr("BROKEN OFF after 3 of 5"));
}

TEST(QualityReportTest, DenseComesFirstAndLossesAreShown) {
  const std::string text = RenderQuality({}, Measured());
  EXPECT_LT(text.find("| dense"), text.find("| quest"));
  EXPECT_THAT(text, HasSubstr("+0.2500"));
  EXPECT_THAT(text, HasSubstr(" 0/1 |             0/1 |"));
  EXPECT_THAT(text, HasSubstr("budget of 100 %"));
}

TEST(QualityReportTest, PlotsReachBelowZeroWhereASelectorDoesBetter) {
  QualityMeasurements m = Measured();
  m.results.erase(m.results.begin());  // leaves the text with -0.5
  const auto plots = QualityPlots({}, m);
  ASSERT_EQ(plots.size(), 2u);
  EXPECT_EQ(plots[0].first, "quality_nll_2000.svg");
  EXPECT_THAT(plots[0].second, HasSubstr(">-0.5<"));
  EXPECT_EQ(plots[1].first, "quality_needles_2000.svg");
  EXPECT_THAT(plots[1].second, Not(HasSubstr(">-")));
}

}  // namespace
}  // namespace smartgen::tools::bench
