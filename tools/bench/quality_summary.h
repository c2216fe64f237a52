// What the items of a variant come to, against full attention on the same items.
#pragma once

#include <optional>
#include <vector>

#include "tools/bench/figures.h"
#include "tools/bench/quality.h"

namespace smartgen::tools::bench {

// Mean -log p of a score's tokens, in nats. None: it failed.
std::optional<double> NllOf(const Score& score);

// Of one kind of items (texts or needles).
struct NllSummary {
  int items = 0;                     // measured with and without selection
  double nll = 0;                    // mean over items
  double difference = 0;             // mean of (nll - dense nll); > 0: selection made it worse
  double standard_error = 0;         // of `difference`; 0 for a single item
  double worst = 0;                  // the largest difference of an item
  double largest = 0;                // the largest |difference| of an item
  std::optional<double> same_first;  // share of tokens whose likeliest one is dense's
};

struct QualitySummary {
  int length = 0;  // 0: all lengths
  Variant variant;
  int failed = 0;  // items without a score, here or in the reference: they count for nothing
  NllSummary texts;
  NllSummary needles;  // of the right answer's tokens
  int found = 0;       // greedy answers with the number
  int dense_found = 0;
  int found_of_dense_found = 0;
  int same_answer = 0;  // greedy answers equal to dense's, right or wrong
};

// `length` 0: items of all lengths.
QualitySummary SummarizeQuality(const QualityMeasurements& measurements, size_t variant,
                                int length);
// In the order of the items, each once.
std::vector<int> LengthsOf(const QualityMeasurements& measurements);

// Which variants select nothing away (budget 1) and so must equal the reference: the largest |NLL
// difference| of their items. None: there is no such variant.
std::optional<double> IdentityError(const QualityMeasurements& measurements);

}  // namespace smartgen::tools::bench
