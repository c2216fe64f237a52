// Prompts cut from text files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/tokenizer/tokenizer.h"

namespace smartgen::tools::profile {

struct Cut {
  std::string text;                     // the file's name without its folder
  int64_t length = 0;                   // prompt tokens
  std::vector<tokenizer::TokenId> ids;  // the prompt and what follows it in the text
};

struct CutOptions {
  std::vector<std::string> files;
  std::vector<int64_t> lengths;
  int64_t steps = 0;  // tokens after each prompt
  int cuts = 1;       // of each text and length
};

struct Cuts {
  std::vector<Cut> cuts;               // text by text, in each by length
  std::vector<std::string> too_short;  // "GPL-1 at 4096": what the text could not give
};

// For each text and length `cuts` prompts from evenly spread places (one: the middle), BOS first
// where the model wants it. Of longer texts the first 4 MiB are used. NotFound for a file that
// cannot be read, InvalidArgument if no text gives any prompt.
absl::StatusOr<Cuts> CutTexts(const tokenizer::Tokenizer& tokenizer, const CutOptions& options);

// Names of the texts of some cuts, each once, in order.
std::vector<std::string> TextNames(const std::vector<Cut>& cuts);

}  // namespace smartgen::tools::profile
