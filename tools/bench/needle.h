// A needle in a haystack: a sentence with a number in the midst of natural text, and a question
// for that number at the end.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "tools/bench/prompts.h"

namespace smartgen::tools::bench {

struct Needle {
  std::string place;   // "Lisbon"
  std::string number;  // five digits, the first of them no 0
  std::string Sentence() const;
  // Ends where the answer's own sentence has begun: a small model completes rather than answers.
  std::string Question() const;
  // How the answer goes on: the lead, which any model would guess, and what is asked for.
  static std::string Lead() { return " is"; }
  std::string Answer() const { return " " + number; }
};

// A function of seed and index alone, equal on every machine.
Needle MakeNeedle(uint64_t seed, int64_t index);

struct HiddenNeedle {
  Prompt prompt;
  int64_t position = 0;  // of the needle's first token in the prompt
};

// A prompt of exactly `length` tokens: the haystack's first tokens, the needle after `depth` (in
// [0, 1]) of them, then the question. The needle stands behind the last sentence that ends there
// within 64 tokens, where there is one. A haystack that begins with BOS keeps it in front.
// InvalidArgument: a haystack that is too short, or a length without room for any of it.
absl::StatusOr<HiddenNeedle> HideNeedle(const Needle& needle,
                                        std::span<const tokenizer::TokenId> haystack,
                                        const tokenizer::Tokenizer& tokenizer, int length,
                                        double depth);

// Whether the number stands in `text` by itself, not inside a longer one.
bool Answers(const Needle& needle, std::string_view text);

}  // namespace smartgen::tools::bench
