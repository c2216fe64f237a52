#include "common/transfer/mode.h"

#include <array>
#include <utility>

namespace smartgen::transfer {
namespace {

constexpr std::array<std::pair<Mode, std::string_view>, 7> kNames = {{{Mode::kAuto, "auto"},
                                                                      {Mode::kFull, "full"},
                                                                      {Mode::kLocal, "local"},
                                                                      {Mode::kExact, "exact"},
                                                                      {Mode::kSmartGen, "smartgen"},
                                                                      {Mode::kPartial, "partial"},
                                                                      {Mode::kRandom, "random"}}};

}  // namespace

std::string_view ModeName(Mode mode) {
  for (const auto& [known, name] : kNames) {
    if (known == mode) return name;
  }
  return "unknown";
}

absl::StatusOr<Mode> ParseMode(std::string_view name) {
  std::string names;
  for (const auto& [known, text] : kNames) {
    if (text == name) return known;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", text);
  }
  return base::InvalidArgument("mode: want one of {}, got \"{}\"", names, name);
}

}  // namespace smartgen::transfer
