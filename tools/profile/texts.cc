#include "tools/profile/texts.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

namespace smartgen::tools::profile {
namespace {

constexpr size_t kMaxTextBytes = 4 << 20;

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text(kMaxTextBytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad() || (in.fail() && !in.eof())) return base::NotFound("text {}: cannot be read", path);
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

}  // namespace

absl::StatusOr<Cuts> CutTexts(const tokenizer::Tokenizer& tokenizer, const CutOptions& options) {
  Cuts out;
  const bool bos = tokenizer.add_bos() && tokenizer.bos_id().has_value();
  for (const std::string& file : options.files) {
    ASSIGN_OR_RETURN(const std::string text, ReadText(file));
    const auto ids = tokenizer.Encode(text, /*parse_special=*/false);
    const std::string name = std::filesystem::path(file).filename().string();
    for (const int64_t length : options.lengths) {
      const int64_t wanted = length + options.steps - (bos ? 1 : 0);
      const int64_t slack = static_cast<int64_t>(ids.size()) - wanted;
      if (slack < 0) {
        out.too_short.push_back(fmt::format("{} at {}", name, length));
        continue;
      }
      for (int cut = 0; cut < options.cuts; ++cut) {
        const int64_t start = slack * (2 * cut + 1) / (2 * options.cuts);
        Cut piece{.text = name, .length = length};
        if (bos) piece.ids.push_back(*tokenizer.bos_id());
        piece.ids.insert(piece.ids.end(), ids.begin() + start, ids.begin() + start + wanted);
        out.cuts.push_back(std::move(piece));
      }
    }
  }
  if (out.cuts.empty()) {
    return base::InvalidArgument(
        "text: want texts of at least {} tokens, none of the {} given is as long",
        options.lengths.empty()
            ? 0
            : *std::min_element(options.lengths.begin(), options.lengths.end()) + options.steps,
        options.files.size());
  }
  return out;
}

std::vector<std::string> TextNames(const std::vector<Cut>& cuts) {
  std::vector<std::string> names;
  for (const Cut& cut : cuts) {
    if (std::find(names.begin(), names.end(), cut.text) == names.end()) names.push_back(cut.text);
  }
  return names;
}

}  // namespace smartgen::tools::profile
