#include "common/tokenizer/special_matcher.h"

namespace smartgen::tokenizer {

void SpecialMatcher::Add(std::string_view text, const Entry& entry) {
  if (text.empty()) return;
  roots_[static_cast<uint8_t>(text[0])] = true;
  uint32_t node = 0;
  for (const char c : text) {
    const auto [edge, added] =
        edges_.try_emplace(Edge(node, c), static_cast<uint32_t>(entry_of_node_.size()));
    if (added) entry_of_node_.push_back(-1);
    node = edge->second;
  }
  if (entry_of_node_[node] >= 0) return;
  entry_of_node_[node] = static_cast<int32_t>(entries_.size());
  entries_.push_back(entry);
}

}  // namespace smartgen::tokenizer
