// Cuts text into the words inside which BPE merges. A list of steps, each of which cuts the pieces
// that the one before left (and sees only the piece, as Hugging Face's tokenizers do it).
//
// Thread-safe after creation.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/tokenizer/regex.h"
#include "nlohmann/json.hpp"

namespace smartgen::tokenizer {

class PreTokenizer {
 public:
  // By tokenizer.ggml.pre. Unimplemented lists the known names.
  static absl::StatusOr<std::unique_ptr<PreTokenizer>> ForGgml(std::string_view pre);
  // From the pre_tokenizer section of tokenizer.json: ByteLevel, Split, Digits, Punctuation and
  // Sequence of these; a ByteLevel must be among them.
  static absl::StatusOr<std::unique_ptr<PreTokenizer>> FromJson(const nlohmann::json& section);

  // Working memory of one thread.
  class Scratch;
  // Words of `text` (valid UTF-8), in order. They point into `text` or into `scratch` and hold
  // until its next use.
  const std::vector<std::string_view>& Split(std::string_view text, Scratch& scratch) const;

 private:
  enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct Step {
    std::unique_ptr<Regex> regex;  // null: only the prefix space
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
    bool prefix_space = false;
  };

  absl::Status AddSection(const nlohmann::json& section, int depth);
  absl::Status AddByteLevel(const nlohmann::json& section);
  absl::Status AddSplit(const nlohmann::json& section);
  absl::Status AddRegex(std::string_view pattern, Behavior behavior, bool invert);
  static void Cut(const Step& step, Regex::Matches& matches, std::string_view piece,
                  std::vector<std::string_view>& out);
  static absl::StatusOr<Behavior> ParseBehavior(const nlohmann::json& section);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

class PreTokenizer::Scratch {
 public:
  explicit Scratch(const PreTokenizer& owner);

 private:
  friend class PreTokenizer;
  std::vector<std::unique_ptr<Regex::Matches>> matches_;  // one a step
  std::vector<std::string_view> words_;
  std::vector<std::string_view> next_;
  std::deque<std::string> owned_;
};

}  // namespace smartgen::tokenizer
