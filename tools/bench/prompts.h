// Prompts of given lengths cut from natural text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/tokenizer/tokenizer.h"

namespace smartgen::tools::bench {

using Prompt = std::vector<tokenizer::TokenId>;

// Licence texts that every Debian system has (package base-files), some 60,000 tokens of English.
std::vector<std::string> DefaultTextFiles();

// The files' texts, one after the other. NotFound names a file that cannot be read.
absl::StatusOr<std::string> ReadTexts(const std::vector<std::string>& files);

// `count` different prompts of `length` tokens, BOS included where the model wants it, from places
// spread evenly over `text`; text that is too short is repeated. They begin at different places, so
// that none is a prefix of another. InvalidArgument: no text, or fewer tokens than prompts.
absl::StatusOr<std::vector<Prompt>> CutPrompts(std::span<const tokenizer::TokenId> text,
                                               const tokenizer::Tokenizer& tokenizer, int length,
                                               int count);

}  // namespace smartgen::tools::bench
