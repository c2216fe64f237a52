// Finds stop strings in streamed text, over token borders. Not thread-safe; one per choice.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace smartgen::chat {

class StopFilter {
 public:
  // Empty strings are ignored.
  explicit StopFilter(std::vector<std::string> stops);

  // Text that may be sent now. A tail that could be the beginning of a stop string is held back.
  // Once stopped() is true nothing more comes out, and nothing of the stop string ever does. The
  // earliest match in the text wins; of several at one place, the longest does.
  std::string Push(std::string_view text);
  // What was held back, when the generation ended for another reason; a match that was waiting for
  // a longer one counts then, and sets stopped().
  std::string Flush();
  bool stopped() const { return stopped_; }
  // The stop string that matched; empty if none.
  const std::string& matched() const { return matched_; }

 private:
  std::string Take(bool final);

  std::vector<std::string> stops_;
  std::string held_;
  std::string matched_;
  bool stopped_ = false;
};

}  // namespace smartgen::chat
