#include "tools/bench/quality.h"

namespace smartgen::tools::bench {
namespace {

// The number-th of `count` cuts, spread over `cuts` so that different texts come first.
const profile::Cut& SpreadOver(const std::vector<const profile::Cut*>& cuts, int64_t number,
                               int64_t count) {
  const auto size = static_cast<int64_t>(cuts.size());
  const int64_t at = count <= size ? number * size / count : number % size;
  return *cuts[static_cast<size_t>(at)];
}

QualityItem TextItem(const profile::Cut& cut, int length) {
  const auto end = cut.ids.begin() + length;
  QualityItem item;
  item.text = cut.text;
  item.length = length;
  item.prompt.assign(cut.ids.begin(), end);
  item.forced.assign(end, cut.ids.end());
  return item;
}

absl::StatusOr<QualityItem> NeedleItem(const profile::Cut& cut, int length, double depth,
                                       const Needle& needle,
                                       const tokenizer::Tokenizer& tokenizer) {
  QualityItem item;
  item.text = cut.text;
  item.length = length;
  item.needle = needle;
  item.depth = depth;
  ASSIGN_OR_RETURN(HiddenNeedle hidden, HideNeedle(needle, cut.ids, tokenizer, length, depth));
  item.position = hidden.position;
  item.prompt = std::move(hidden.prompt);
  item.forced = tokenizer.Encode(Needle::Lead(), /*parse_special=*/false);
  if (item.forced.size() != 1) {
    return base::InvalidArgument("needle: want a tokenizer that makes one token of \"{}\", got {}",
                                 Needle::Lead(), item.forced.size());
  }
  const auto answer = tokenizer.Encode(needle.Answer(), /*parse_special=*/false);
  item.forced.insert(item.forced.end(), answer.begin(), answer.end());
  return item;
}

}  // namespace

absl::StatusOr<std::vector<QualityItem>> MakeItems(const ItemOptions& options,
                                                   const std::vector<profile::Cut>& cuts,
                                                   const tokenizer::Tokenizer& tokenizer) {
  std::vector<QualityItem> items;
  int64_t needles = 0;
  for (size_t i = 0; i < options.lengths.size(); ++i) {
    const int length = options.lengths[i];
    std::vector<const profile::Cut*> of_length;
    for (const profile::Cut& cut : cuts) {
      if (cut.length == length) of_length.push_back(&cut);
    }
    if (of_length.empty()) {
      return base::InvalidArgument("texts: want one of at least {} tokens, there is none",
                                   length + options.continuation_tokens);
    }
    for (int number = 0; number < options.texts[i]; ++number) {
      if (number >= static_cast<int>(of_length.size())) break;  // twice the same tells nothing
      items.push_back(TextItem(SpreadOver(of_length, number, options.texts[i]), length));
    }
    const auto depths = static_cast<int64_t>(options.depths.size());
    for (int64_t number = 0; number < options.needles[i] * depths; ++number) {
      const profile::Cut& cut = SpreadOver(of_length, number, options.needles[i] * depths);
      const double depth = options.depths[static_cast<size_t>(number % depths)];
      ASSIGN_OR_RETURN(
          items.emplace_back(),
          NeedleItem(cut, length, depth, MakeNeedle(options.seed, needles++), tokenizer));
    }
  }
  return items;
}

}  // namespace smartgen::tools::bench
