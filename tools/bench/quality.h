// What selecting KV costs in quality: the same prompts with full attention and with each selector
// and budget, through the daemons.
//
// Two kinds of items. Of a text, the tokens that really follow the prompt are forced, and their
// log-probabilities compared. Of a needle (tools/bench/needle.h), the right answer is forced
// likewise, and a second request answers greedily. Token 1 is never scored: the prefill side makes
// it, with full attention whatever the selector; all tokens behind it are the decode side's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "tools/bench/needle.h"
#include "tools/bench/rig.h"
#include "tools/bench/session.h"
#include "tools/profile/texts.h"

namespace smartgen::tools::bench {

// How KV is selected; the first one of a measurement is the reference, with none.
struct Variant {
  std::string selector;  // empty: full attention, mode full
  double budget = 1;     // share of the context, in (0, 1]
  bool dense() const { return selector.empty(); }
};

struct QualityItem {
  std::string text;  // the file's name
  int length = 0;    // prompt tokens
  // With a needle, and how deep it stands in the haystack (as asked for, in [0, 1]).
  std::optional<Needle> needle;
  double depth = 0;
  int64_t position = 0;
  Prompt prompt;
  std::vector<int32_t> forced;  // the first one is token 1
};

// An item under a variant.
struct Score {
  absl::Status status;
  std::vector<double> logprobs;    // of forced tokens from the second on
  std::vector<int32_t> likeliest;  // what the model held most likely in their places
  std::string answer;              // needles: greedy, behind the lead
  double cached_tokens = 0;        // of the prompt, by the prefill side
};

struct QualityResult {
  QualityItem item;
  std::vector<Score> scores;  // by variant
};

struct QualityMeasurements {
  ModelFacts model;
  std::vector<Variant> variants;
  std::vector<QualityResult> results;
  size_t planned = 0;  // results that there will be, if it is not broken off
  double seconds = 0;
};

struct ItemOptions {
  std::vector<int> lengths;
  std::vector<int> texts;    // of each length
  std::vector<int> needles;  // of each length, at each depth
  std::vector<double> depths;
  int continuation_tokens = 64;
  uint64_t seed = 1;
};

// `cuts`: what CutTexts gave for these lengths, with continuation_tokens as steps. Items of a
// length come from cuts spread over all that have it. InvalidArgument: a length for which there is
// none.
absl::StatusOr<std::vector<QualityItem>> MakeItems(const ItemOptions& options,
                                                   const std::vector<profile::Cut>& cuts,
                                                   const tokenizer::Tokenizer& tokenizer);

struct QualityOptions {
  std::vector<Variant> variants;  // the first one dense
  int batch = 4;                  // requests at once
  base::Duration start_timeout = std::chrono::minutes(5);
  base::Duration request_timeout = std::chrono::hours(1);
  std::function<void()> on_item;  // after each item; null: nothing
};

// Runs each item under each variant; the reference first and alone, so that the prefill side can
// have the prompt cached for the others. Failures of requests are in the scores. Progress goes to
// standard error. InvalidArgument: an item longer than the context. `measurements` grows item by
// item, so that what was measured remains when the rest is broken off.
absl::Status MeasureQuality(const QualityOptions& options, std::vector<QualityItem> items,
                            const tokenizer::Tokenizer& tokenizer, const Rig& rig, StopSource& stop,
                            QualityMeasurements& measurements);

}  // namespace smartgen::tools::bench
