#include "common/chat/stop_filter.h"

#include <gtest/gtest.h>

#include <random>

namespace smartgen::chat {
namespace {

struct Outcome {
  std::string text;
  bool stopped = false;
  std::string matched;
  friend bool operator==(const Outcome&, const Outcome&) = default;
  friend void PrintTo(const Outcome& o, std::ostream* out) {
    *out << "'" << o.text << "' stopped=" << o.stopped << " by '" << o.matched << "'";
  }
};

Outcome Stream(const std::vector<std::string>& stops, const std::vector<std::string>& pushes) {
  StopFilter filter(stops);
  Outcome outcome;
  for (const std::string& push : pushes) outcome.text += filter.Push(push);
  outcome.text += filter.Flush();
  outcome.stopped = filter.stopped();
  outcome.matched = filter.matched();
  return outcome;
}

// The earliest match in the whole text, of several at one place the longest.
Outcome Reference(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t pos = 0; pos < text.size(); ++pos) {
    std::string longest;
    for (const std::string& stop : stops) {
      if (text.compare(pos, stop.size(), stop) == 0 && stop.size() > longest.size()) longest = stop;
    }
    if (!longest.empty()) return {text.substr(0, pos), true, longest};
  }
  return {text, false, ""};
}

TEST(StopFilter, S1_NothingOfAStopStringOverThreeTokensIsSent) {
  StopFilter filter({"</end>"});
  EXPECT_EQ(filter.Push("answer</"), "answer");
  EXPECT_EQ(filter.Push("en"), "");
  EXPECT_EQ(filter.Push("d>"), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.matched(), "</end>");
  EXPECT_EQ(filter.Push("more"), "");
  EXPECT_EQ(filter.Flush(), "");
}

TEST(StopFilter, S1_ABeginningThatNeverEndedIsSentAtTheEnd) {
  StopFilter filter({"</end>"});
  EXPECT_EQ(filter.Push("</en"), "");
  EXPECT_EQ(filter.Flush(), "</en");
  EXPECT_FALSE(filter.stopped());
}

TEST(StopFilter, S11_AnyCutOfTheTextGivesTheSameOutcome) {
  const std::vector<std::string> stops = {"END", "\n\n"};
  const std::string text = "one EN two\nthree END four";
  const Outcome whole = Stream(stops, {text});
  EXPECT_EQ(whole, (Outcome{"one EN two\nthree ", true, "END"}));
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(Stream(stops, {text.substr(0, cut), text.substr(cut)}), whole) << cut;
  }
}

TEST(StopFilter, HoldsBackNoMoreThanCouldBeAStop) {
  StopFilter filter({"abc"});
  EXPECT_EQ(filter.Push("xxab"), "xx");
  EXPECT_EQ(filter.Push("ab"), "ab");
  EXPECT_EQ(filter.Push("d"), "abd");
}

TEST(StopFilter, EmptyStopsAreIgnored) {
  EXPECT_EQ(Stream({"", ""}, {"text"}), (Outcome{"text", false, ""}));
  EXPECT_EQ(Stream({}, {"text"}), (Outcome{"text", false, ""}));
}

TEST(StopFilter, TheLongestOfTwoAtOnePlaceWins) {
  EXPECT_EQ(Stream({"ab", "abcd"}, {"xab", "cd"}), (Outcome{"x", true, "abcd"}));
  EXPECT_EQ(Stream({"ab", "abcd"}, {"xab", "ce"}), (Outcome{"x", true, "ab"}));
  EXPECT_EQ(Stream({"ab", "abcd"}, {"xab"}), (Outcome{"x", true, "ab"}));
}

TEST(StopFilter, EqualsTheReferenceOnRandomTexts) {
  std::mt19937 random(11);
  const auto word = [&](size_t longest) {
    std::string text;
    for (size_t n = random() % (longest + 1); n > 0; --n) text += "abc"[random() % 3];
    return text;
  };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (size_t n = random() % 4; n > 0; --n) stops.push_back(word(5));
    std::vector<std::string> pushes;
    std::string text;
    for (size_t n = random() % 10; n > 0; --n) {
      pushes.push_back(word(4));
      text += pushes.back();
    }
    ASSERT_EQ(Stream(stops, pushes), Reference(stops, text)) << "round " << round << " " << text;
  }
}

}  // namespace
}  // namespace smartgen::chat
