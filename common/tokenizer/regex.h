// PCRE2 over valid UTF-8, with Unicode properties and the JIT. Patterns are those of tokenizer.json
// (Oniguruma's dialect): \s and \S are translated to the White_Space property, of which PCRE's own
// \s differs in U+180E.
//
// Thread-safe after Create.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace smartgen::tokenizer {

class Regex {
 public:
  static absl::StatusOr<std::unique_ptr<Regex>> Create(std::string_view pattern);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // Walks over the matches in one text. A match that runs into PCRE's limits ends the walk
  // (logged).
  class Matches {
   public:
    // `text` must be valid UTF-8; both must outlive this.
    Matches(const Regex& regex, std::string_view text);
    ~Matches();
    Matches(const Matches&) = delete;
    Matches& operator=(const Matches&) = delete;
    // Starts over on another text with the same working memory.
    void Reset(std::string_view text);
    // The next non-empty match as [begin, end) in the text.
    bool Next(size_t& begin, size_t& end);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  Regex() = default;
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace smartgen::tokenizer
