#include "tools/bench/cases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/decode.pb.h"
#include "tools/bench/common_options.h"
#include "tools/bench/generation.h"
#include "tools/bench/prompts.h"
#include "tools/bench/rig.h"

namespace smartgen::tools::bench {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

std::vector<std::string> NamesOf(const std::vector<Case>& cases) {
  std::vector<std::string> names;
  for (const Case& one : cases) names.push_back(one.name);
  return names;
}

std::string MessageOf(const absl::Status& status) { return std::string(base::MessageOf(status)); }

TEST(CasesTest, WithoutASweepThereIsOneCaseAMode) {
  const auto cases = MakeCases({.modes = {"full", "local"}, .batch = 3});
  ASSERT_TRUE(cases.ok());
  EXPECT_THAT(NamesOf(*cases), ElementsAre("full", "local"));
  EXPECT_EQ((*cases)[0].batch, 3);
}

TEST(CasesTest, ThePrefixSweepVariesEveryMode) {
  const auto cases = MakeCases({.modes = {"full", "local"}, .sweep = "prefix"});
  ASSERT_TRUE(cases.ok());
  EXPECT_THAT(NamesOf(*cases),
              ElementsAre("full prefix 0%", "local prefix 0%", "full prefix 75%",
                          "local prefix 75%", "full prefix 90%", "local prefix 90%"));
  EXPECT_EQ(cases->back().prefix_hit, 0.9);
}

TEST(CasesTest, TheBatchSweepGoesFromOneToSix) {
  const auto cases = MakeCases({.modes = {"full"}, .sweep = "batch"});
  ASSERT_TRUE(cases.ok());
  EXPECT_EQ(cases->front().batch, 1);
  EXPECT_EQ(cases->back().batch, 6);
}

TEST(CasesTest, WhatIsUnknownIsRefusedWithWhatIsKnown) {
  EXPECT_THAT(MessageOf(MakeCases({.modes = {"fill"}}).status()), HasSubstr("full"));
  EXPECT_THAT(MessageOf(MakeCases({.modes = {"full"}, .sweep = "moon"}).status()),
              HasSubstr("speculative, budget"));
  EXPECT_THAT(MessageOf(MakeCases({.modes = {"full", "full"}}).status()), HasSubstr("twice"));
  EXPECT_THAT(MessageOf(MakeCases({.modes = {"full"}, .options = {{"no_such", "1"}}}).status()),
              HasSubstr("no_such"));
}

TEST(CasesTest, ASweepOverAnOptionVariesItsModeAndKeepsTheOthers) {
  const auto cases = MakeCases(
      {.modes = {"full", "smartgen"}, .options = {{"selector", "hata"}}, .sweep = "speculative"});
  ASSERT_TRUE(cases.ok()) << cases.status();
  EXPECT_THAT(NamesOf(*cases),
              ElementsAre("full", "smartgen speculative_ratio=0.05",
                          "smartgen speculative_ratio=0.1", "smartgen speculative_ratio=0.2"));
  EXPECT_THAT((*cases)[1].options,
              UnorderedElementsAre(Pair("selector", "hata"), Pair("speculative_ratio", "0.05")));
}

TEST(CasesTest, TheAblationAddsThePartsOneByOne) {
  const auto cases = MakeCases({.modes = {"full"}, .sweep = "ablation"});
  ASSERT_TRUE(cases.ok()) << cases.status();
  ASSERT_EQ(cases->size(), 4u);
  EXPECT_EQ((*cases)[0].mode, "partial");
  EXPECT_THAT((*cases)[1].options,
              UnorderedElementsAre(Pair("parallel", "off"), Pair("prefetch", "off"),
                                   Pair("speculation", "off"), Pair("handover", "none")));
  EXPECT_THAT((*cases)[2].options,
              UnorderedElementsAre(Pair("speculation", "off"), Pair("handover", "none")));
  EXPECT_THAT((*cases)[3].options, UnorderedElementsAre(Pair("handover", "none")));
  const auto given =
      MakeCases({.modes = {"full"}, .options = {{"handover", "split"}}, .sweep = "ablation"});
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_THAT((*given)[3].options, UnorderedElementsAre(Pair("handover", "split")));
}

TEST(CasesTest, ASweepOverAnOptionWantsTheModeThatHasIt) {
  EXPECT_THAT(MessageOf(MakeCases({.modes = {"full"}, .sweep = "budget"}).status()),
              HasSubstr("smartgen"));
}

TEST(CasesTest, OptionsAreNameAndValue) {
  const auto options = ParseOptions({"a=1", "b=x=y"});
  ASSERT_TRUE(options.ok());
  EXPECT_THAT(*options, UnorderedElementsAre(Pair("a", "1"), Pair("b", "x=y")));
  EXPECT_FALSE(ParseOptions({"a"}).ok());
  EXPECT_FALSE(ParseOptions({"=1"}).ok());
  EXPECT_FALSE(ParseOptions({"a=1", "a=2"}).ok());
}

TEST(GenerationTest, RequestsAreGreedyAndGoOnPastTheEndOfText) {
  const auto request = MakeRequest({{5, 6}, 9, "full", {}}, "print");
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->mode(), v1::MODE_FULL);
  EXPECT_EQ(request->sampling().temperature(), 0);
  EXPECT_TRUE(request->sampling().ignore_eos());
  EXPECT_EQ(request->max_tokens(), 9);
  EXPECT_EQ(request->model_fingerprint(), "print");
  EXPECT_THAT(request->prompt_ids(), ElementsAre(5, 6));
}

TEST(GenerationTest, OptionsAreSetByName) {
  const auto request = MakeRequest({{5},
                                    2,
                                    "exact",
                                    {{"handover", "attend"},
                                     {"selection_budget", "0.25"},
                                     {"selector", "hata"},
                                     {"speculation", "off"}}},
                                   "");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->mode(), v1::MODE_EXACT);
  const v1::TransferOptions& options = request->transfer();
  EXPECT_EQ(options.handover(), v1::TransferOptions::HANDOVER_ATTEND);
  EXPECT_EQ(options.selection_budget(), 0.25);
  EXPECT_EQ(options.selector(), "hata");
  EXPECT_TRUE(options.has_speculation());
  EXPECT_FALSE(options.speculation());
  EXPECT_FALSE(options.has_speculative_ratio()) << "the daemon's default";
}

TEST(GenerationTest, OptionValuesThatDoNotFitAreRefused) {
  const auto message = [](const std::string& name, const std::string& value) {
    return MessageOf(MakeRequest({{5}, 2, "exact", {{name, value}}}, "").status());
  };
  EXPECT_THAT(message("handover", "throw"), HasSubstr("unspecified, split, attend"));
  EXPECT_THAT(message("selection_budget", "much"), HasSubstr("a number"));
  EXPECT_THAT(message("speculation", "maybe"), HasSubstr("true, false, on or off"));
  EXPECT_THAT(message("colour", "red"), HasSubstr("speculative_ratio"));
}

TEST(GenerationTest, KnownModesAreTheProtocols) {
  EXPECT_THAT(KnownModes(), Contains("full"));
  EXPECT_THAT(KnownModes(), Contains("local"));
  EXPECT_EQ(KnownModes().back(), "auto");
}

TEST(GenerationTest, StatsAreReadByFieldName) {
  v1::RequestStats stats;
  stats.set_mode(v1::MODE_LOCAL);
  stats.set_prefill_seconds(1.5);
  stats.set_transfer_bytes(1000);
  stats.set_fallback_reason("why");
  Generation generation;
  Flatten(stats, "", generation);
  EXPECT_THAT(generation.numbers, Contains(Pair("prefill_seconds", 1.5)));
  EXPECT_THAT(generation.numbers, Contains(Pair("transfer_bytes", 1000)));
  EXPECT_THAT(generation.texts, Contains(Pair("mode", "mode_local")));
  EXPECT_THAT(generation.texts, Contains(Pair("fallback_reason", "why")));
}

TEST(GenerationTest, MapsAreReadByKey) {
  v1::RequestStats stats;
  (*stats.mutable_path_bytes())["ondemand"] = 12;
  Generation generation;
  Flatten(stats, "", generation);
  EXPECT_THAT(generation.numbers, Contains(Pair("path_bytes.ondemand", 12)));
}

TEST(GenerationTest, NestedFieldsAreReadToo) {
  v1::GenerateEvent event;
  event.mutable_finished()->mutable_stats()->set_preemptions(3);
  Generation generation;
  Flatten(event, "", generation);
  EXPECT_THAT(generation.numbers, Contains(Pair("finished.stats.preemptions", 3)));
}

// As many tokens as the text has bytes.
class ByteTokenizer final : public tokenizer::Tokenizer {
 public:
  explicit ByteTokenizer(bool bos) : bos_(bos) {}
  int vocab_size() const override { return 257; }
  std::vector<tokenizer::TokenId> Encode(std::string_view text, bool) const override {
    return {text.begin(), text.end()};
  }
  std::vector<tokenizer::TokenId> EncodePieces(
      std::span<const tokenizer::TextPiece>) const override {
    return {};
  }
  std::string_view TokenBytes(tokenizer::TokenId, bool) const override { return ""; }
  bool IsControl(tokenizer::TokenId) const override { return false; }
  std::optional<tokenizer::TokenId> bos_id() const override { return 256; }
  bool add_bos() const override { return bos_; }
  std::span<const tokenizer::TokenId> eos_ids() const override { return {}; }
  std::optional<tokenizer::TokenId> FindSpecial(std::string_view) const override { return {}; }
  std::span<const std::string> special_texts() const override { return {}; }

 private:
  const bool bos_;
};

std::vector<tokenizer::TokenId> Numbers(int count) {
  std::vector<tokenizer::TokenId> numbers(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) numbers[static_cast<size_t>(i)] = i;
  return numbers;
}

TEST(PromptsTest, PromptsAreConsecutiveTextFromDifferentPlaces) {
  const auto prompts = CutPrompts(Numbers(100), ByteTokenizer(false), 4, 3);
  ASSERT_TRUE(prompts.ok());
  // Places 0, 96 / 3 and 2 * 96 / 3.
  EXPECT_THAT(*prompts, ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(32, 33, 34, 35),
                                    ElementsAre(64, 65, 66, 67)));
}

TEST(PromptsTest, ABosTokenCountsForTheLength) {
  const auto prompts = CutPrompts(Numbers(100), ByteTokenizer(true), 3, 1);
  ASSERT_TRUE(prompts.ok());
  EXPECT_THAT(*prompts, ElementsAre(ElementsAre(256, 0, 1)));
}

TEST(PromptsTest, ShortTextIsRepeated) {
  const auto prompts = CutPrompts(Numbers(3), ByteTokenizer(false), 5, 2);
  ASSERT_TRUE(prompts.ok());
  EXPECT_THAT(*prompts, ElementsAre(ElementsAre(0, 1, 2, 0, 1), ElementsAre(1, 2, 0, 1, 2)));
}

TEST(PromptsTest, WithoutTextThereAreNoPrompts) {
  EXPECT_FALSE(CutPrompts({}, ByteTokenizer(false), 5, 1).ok());
}

TEST(PromptsTest, AMissingFileIsNamed) {
  EXPECT_THAT(MessageOf(ReadTexts({"/none/such"}).status()), HasSubstr("/none/such"));
}

TEST(StopSourceTest, AStopWakesSleepersAndCallsBack) {
  StopSource stop;
  EXPECT_TRUE(stop.Sleep(std::chrono::milliseconds(1)));
  int calls = 0;
  stop.OnStop([&] { ++calls; });
  stop.Stop();
  stop.Stop();
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(stop.Sleep(std::chrono::hours(1)));
  stop.OnStop([&] { ++calls; });
  EXPECT_EQ(calls, 2) << "at once: it was stopped already";
}

TEST(TakeTextsTest, TheShellMakesManyArgumentsOfAPattern) {
  std::vector<std::string> texts = {"a"};
  EXPECT_EQ(TakeTexts({"b", "c", "--checksum=false"}, texts),
            std::vector<std::string>{"--checksum=false"});
  EXPECT_EQ(texts, (std::vector<std::string>{"a", "b", "c"}));
}

}  // namespace
}  // namespace smartgen::tools::bench
