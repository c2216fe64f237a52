#include "tools/bench/prompts.h"

#include <fstream>
#include <sstream>

namespace smartgen::tools::bench {

std::vector<std::string> DefaultTextFiles() {
  std::vector<std::string> files;
  for (const char* name :
       {"GPL-3", "GFDL-1.3", "Apache-2.0", "MPL-2.0", "LGPL-2.1", "GPL-1", "Artistic"}) {
    files.push_back(std::string("/usr/share/common-licenses/") + name);
  }
  return files;
}

absl::StatusOr<std::string> ReadTexts(const std::vector<std::string>& files) {
  std::string all;
  for (const std::string& file : files) {
    std::ifstream in(file, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    if (!in) return base::NotFound("text: cannot read {}", file);
    all += std::move(text).str();
    all += "\n\n";
  }
  return all;
}

absl::StatusOr<std::vector<Prompt>> CutPrompts(std::span<const tokenizer::TokenId> text,
                                               const tokenizer::Tokenizer& tokenizer, int length,
                                               int count) {
  if (length < 1 || count < 1) {
    return base::InvalidArgument("prompts: want a length and a count of at least 1, got {} and {}",
                                 length, count);
  }
  const auto tokens = static_cast<int64_t>(text.size());
  if (tokens < count) {
    return base::InvalidArgument("text: want at least {} tokens for as many prompts, got {}", count,
                                 tokens);
  }
  // Where all fit in without repetition, none runs over the end.
  const int64_t last = tokens - length >= count ? tokens - length : tokens;
  std::vector<Prompt> prompts;
  for (int i = 0; i < count; ++i) {
    Prompt prompt;
    if (tokenizer.add_bos() && tokenizer.bos_id()) prompt.push_back(*tokenizer.bos_id());
    for (int64_t at = last * i / count; static_cast<int>(prompt.size()) < length; ++at) {
      prompt.push_back(text[static_cast<size_t>(at % tokens)]);
    }
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

}  // namespace smartgen::tools::bench
