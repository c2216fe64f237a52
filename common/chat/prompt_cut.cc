// PromptGuard's second half: comparing renders and cutting the prompt.
#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/chat/prompt_guard.h"

namespace smartgen::chat {
namespace {

// Characters that are stand-ins in `masked`; nullopt unless the two are equal otherwise.
std::optional<std::vector<bool>> Align(const std::u32string& prompt, const std::u32string& masked,
                                       const PromptGuard::StandIns& stand_ins) {
  if (prompt.size() != masked.size()) return std::nullopt;
  std::vector<bool> user(prompt.size(), false);
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (stand_ins.Has(masked[i])) {
      user[i] = true;
    } else if (prompt[i] != masked[i]) {
      return std::nullopt;
    }
  }
  return user;
}

std::vector<bool> StandInMap(const std::u32string& text, const PromptGuard::StandIns& stand_ins) {
  std::vector<bool> map(text.size());
  for (size_t i = 0; i < text.size(); ++i) map[i] = stand_ins.Has(text[i]);
  return map;
}

bool AnyIn(const std::vector<bool>& user, size_t begin, size_t end) {
  return std::find(user.begin() + begin, user.begin() + end, true) != user.begin() + end;
}

Rendered Assemble(const std::u32string& prompt, const std::vector<bool>& user) {
  Rendered rendered;
  for (size_t begin = 0; begin < prompt.size();) {
    size_t end = begin + 1;
    while (end < prompt.size() && user[end] == user[begin]) ++end;
    rendered.pieces.push_back(
        {ToUtf8(std::u32string_view(prompt).substr(begin, end - begin)), user[begin]});
    begin = end;
  }
  return rendered;
}

// Which characters both renders agree on from the front and from the back, and which of them are
// the request's. Everything between is the request's.
std::vector<bool> CommonEnds(const std::u32string& prompt, const std::u32string& masked,
                             const PromptGuard::StandIns& stand_ins) {
  std::vector<bool> user(prompt.size(), true);
  const size_t shorter = std::min(prompt.size(), masked.size());
  size_t front = 0;
  while (front < shorter && (prompt[front] == masked[front] || stand_ins.Has(masked[front]))) {
    user[front] = stand_ins.Has(masked[front]);
    ++front;
  }
  for (size_t back = 1; back <= shorter - front; ++back) {
    const char32_t c = masked[masked.size() - back];
    if (prompt[prompt.size() - back] != c && !stand_ins.Has(c)) break;
    user[user.size() - back] = stand_ins.Has(c);
  }
  return user;
}

}  // namespace

std::vector<int> PromptGuard::CleanSequence(const std::u32string& text,
                                            const std::vector<bool>& user) const {
  std::vector<int> sequence;
  for (const Occurrence& found : FindAll(text)) {
    if (!AnyIn(user, found.begin, found.end)) sequence.push_back(found.special);
  }
  return sequence;
}

bool PromptGuard::Aligned(const std::string& prompt, const std::string& masked,
                          const StandIns& stand_ins) const {
  return Align(ToUtf32(prompt), ToUtf32(masked), stand_ins).has_value();
}

Rendered PromptGuard::CutAll(const std::string& prompt) const {
  const std::u32string text = ToUtf32(prompt);
  std::vector<bool> user(text.size(), false);
  for (const Occurrence& found : FindAll(text)) {
    std::fill(user.begin() + found.begin, user.begin() + found.end, true);
  }
  return Assemble(text, user);
}

Rendered PromptGuard::Cut(const std::string& prompt, const std::string* characters,
                          const std::string* fragments, const StandIns& stand_ins) const {
  if (characters == nullptr) {
    SMARTGEN_LOG(warn, "chat",
                 "the template fails on text without special strings: all special "
                 "strings in the prompt are read as plain text");
    return CutAll(prompt);
  }
  const std::u32string text = ToUtf32(prompt);
  const std::u32string masked = ToUtf32(*characters);
  std::optional<std::vector<bool>> user = Align(text, masked, stand_ins);
  if (!user.has_value() && fragments != nullptr) {
    user = Align(text, ToUtf32(*fragments), stand_ins);
    if (user.has_value() &&
        CleanSequence(text, *user) != CleanSequence(masked, StandInMap(masked, stand_ins))) {
      user.reset();
    }
  }
  if (!user.has_value()) {
    SMARTGEN_LOG(warn, "chat",
                 "request text cannot be told from the template's everywhere: special "
                 "strings in doubt are read as plain text");
    user = CommonEnds(text, masked, stand_ins);
  }
  // Only what touches a special string needs cutting out.
  std::vector<bool> cut(text.size(), false);
  for (const Occurrence& found : FindAll(text)) {
    for (size_t i = found.begin; i < found.end; ++i) cut[i] = cut[i] || (*user)[i];
  }
  return Assemble(text, cut);
}

}  // namespace smartgen::chat
