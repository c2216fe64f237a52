// Tells request text from template text in a rendered prompt, so that the request's can never
// become a special token.
//
// The template is rendered again with *stand-ins* in the request's strings: characters that occur
// nowhere in request, template or prompt, one for one, so that trimming, slicing and lengths work
// alike. Where stand-ins come out, the request is speaking. Two levels:
//
//   kCharacters  Every occurrence of certain characters, at least one of which stands in each
//   special string
//                ('|' for "<|im_end|>"). However a template cuts and joins request text, a special
//                string to which the request gave such a character shows up. A template that looks
//                for these characters in the content takes another course, though, and the two
//                renders part.
//                A string that is, trimmed, wholly a part of a special string is taken as well.
//   kFragments   Only whole special strings, and pieces of them at the ends of strings. Disturbs no
//   template
//                that looks into content for something else; believed only where the special
//                strings left over are those that the kCharacters render has.
//
// Where neither settles it, the common prefix and suffix of the prompt and the kCharacters render
// are the template's, and every special string elsewhere counts as request text.
//
// Thread-safe after construction.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/chat/chat_template.h"

namespace smartgen::chat {

class PromptGuard {
 public:
  enum class Level { kCharacters, kFragments };

  explicit PromptGuard(const std::vector<std::string>& special_texts);

  // The characters of kCharacters.
  const std::set<char32_t>& hit_characters() const { return hits_; }

  // A block of characters that are in none of the texts; nullopt where all are taken (by a request
  // that has them all).
  class StandIns {
   public:
    bool Has(char32_t c) const { return c >= first_ && c < first_ + kSize; }
    char32_t For(char32_t c) const { return first_ + c % kSize; }
    static constexpr char32_t kSize = 64;

   private:
    friend class PromptGuard;
    explicit StandIns(char32_t first) : first_(first) {}
    char32_t first_;
  };
  static std::optional<StandIns> ChooseStandIns(const std::vector<std::string_view>& texts);

  // `variables` (see BuildVariables) with stand-ins. Roles of the usual names are left alone:
  // templates compare them, and build special tokens out of them on purpose.
  nlohmann::ordered_json Mask(const nlohmann::ordered_json& variables, Level level,
                              const StandIns& stand_ins) const;

  // The prompt cut into pieces. A render that failed is null.
  Rendered Cut(const std::string& prompt, const std::string* characters,
               const std::string* fragments, const StandIns& stand_ins) const;
  // Whether the kCharacters render alone settles it.
  bool Aligned(const std::string& prompt, const std::string& masked,
               const StandIns& stand_ins) const;
  // All special strings count as request text: the safe answer to knowing nothing.
  Rendered CutAll(const std::string& prompt) const;

 private:
  struct Occurrence {
    size_t begin, end;
    int special;
  };
  void ChooseHitCharacters();
  std::vector<Occurrence> FindAll(const std::u32string& text) const;
  std::vector<int> CleanSequence(const std::u32string& text, const std::vector<bool>& user) const;
  std::u32string MaskString(const std::u32string& text, Level level, bool is_key,
                            const StandIns& stand_ins) const;
  void MarkFragments(const std::u32string& text, std::vector<bool>& mark) const;
  nlohmann::ordered_json MaskValue(const nlohmann::ordered_json& value, Level level,
                                   const StandIns& stand_ins, bool in_message) const;

  std::vector<std::u32string> specials_;
  std::set<char32_t> hits_;
  absl::flat_hash_map<uint64_t, uint32_t> edges_;  // trie over specials_
  std::vector<int> special_of_node_ = {-1};
};

// Invalid UTF-8 must not be passed.
std::u32string ToUtf32(std::string_view text);
std::string ToUtf8(std::u32string_view text);

}  // namespace smartgen::chat
