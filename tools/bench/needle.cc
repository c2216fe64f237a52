#include "tools/bench/needle.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "common/sampling/sampler.h"

namespace smartgen::tools::bench {
namespace {

constexpr std::array<const char*, 24> kPlaces = {
    "Lisbon", "Oslo",   "Vienna",  "Madrid", "Dublin",  "Prague", "Athens", "Warsaw",
    "Cairo",  "Lima",   "Delhi",   "Tokyo",  "Sydney",  "Berlin", "Rome",   "Paris",
    "Boston", "Havana", "Nairobi", "Seoul",  "Toronto", "Munich", "Geneva", "Bergen"};
constexpr int64_t kLookBack = 64;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool EndsSentence(std::string_view bytes) {
  return !bytes.empty() && (bytes.back() == '.' || bytes.back() == '\n');
}

}  // namespace

std::string Needle::Sentence() const {
  return fmt::format(" The secret number of {} is {}.", place, number);
}

std::string Needle::Question() const {
  return fmt::format(
      "\n\nQuestion: What is the secret number of {}?\nAnswer: The secret number of {}", place,
      place);
}

Needle MakeNeedle(uint64_t seed, int64_t index) {
  const auto draw = [&](int64_t which, size_t count) {
    const double uniform = sampling::UniformAt(seed, 2 * index + which);
    return static_cast<size_t>(uniform * static_cast<double>(count));
  };
  Needle needle;
  needle.place = kPlaces[draw(0, kPlaces.size())];
  needle.number = fmt::format("{}", 10000 + draw(1, 90000));
  return needle;
}

absl::StatusOr<HiddenNeedle> HideNeedle(const Needle& needle,
                                        std::span<const tokenizer::TokenId> haystack,
                                        const tokenizer::Tokenizer& tokenizer, int length,
                                        double depth) {
  if (!(depth >= 0 && depth <= 1)) {
    return base::InvalidArgument("needle: want a depth from 0 to 1, got {}", depth);
  }
  const auto sentence = tokenizer.Encode(needle.Sentence(), /*parse_special=*/false);
  const auto question = tokenizer.Encode(needle.Question(), /*parse_special=*/false);
  const int64_t hay = length - static_cast<int64_t>(sentence.size() + question.size());
  if (hay < 1 || hay > static_cast<int64_t>(haystack.size())) {
    return base::InvalidArgument(
        "needle: a prompt of {} tokens wants {} of haystack, from 1 to the {} that there are",
        length, hay, haystack.size());
  }
  const bool bos = tokenizer.bos_id() && haystack[0] == *tokenizer.bos_id();
  const auto first = static_cast<int64_t>(bos);
  int64_t at =
      std::max(first, static_cast<int64_t>(std::llround(depth * static_cast<double>(hay))));
  for (int64_t back = at; back > first && back > at - kLookBack; --back) {
    if (!EndsSentence(tokenizer.TokenBytes(haystack[static_cast<size_t>(back - 1)], true)))
      continue;
    at = back;
    break;
  }
  HiddenNeedle hidden;
  hidden.position = at;
  const auto begin = haystack.begin();
  hidden.prompt.assign(begin, begin + at);
  hidden.prompt.insert(hidden.prompt.end(), sentence.begin(), sentence.end());
  hidden.prompt.insert(hidden.prompt.end(), begin + at, begin + hay);
  hidden.prompt.insert(hidden.prompt.end(), question.begin(), question.end());
  return hidden;
}

bool Answers(const Needle& needle, std::string_view text) {
  for (size_t at = text.find(needle.number); at != std::string_view::npos;
       at = text.find(needle.number, at + 1)) {
    const size_t end = at + needle.number.size();
    if ((at == 0 || !IsDigit(text[at - 1])) && (end == text.size() || !IsDigit(text[end]))) {
      return true;
    }
  }
  return false;
}

}  // namespace smartgen::tools::bench
