// Finds special-token strings in text: at each place the longest, the leftmost first.
//
// Thread-safe after the last Add.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/tokenizer/tokenizer.h"

namespace smartgen::tokenizer {

class SpecialMatcher {
 public:
  struct Entry {
    TokenId id = -1;
    bool guarded = false;  // matched only where special parsing is asked for
    bool lstrip = false;   // swallows white space before it
    bool rstrip = false;   // and after it
  };
  SpecialMatcher() { roots_.fill(false); }

  // The first of several with the same text counts. Empty texts are ignored.
  void Add(std::string_view text, const Entry& entry);
  bool empty() const { return entries_.empty(); }

  struct Match {
    size_t begin, end;
    const Entry* entry;
  };
  // The longest string at `pos` for which accept(entry, end) holds; entry is null if there is none.
  template <typename Accept>
  Match LongestAt(std::string_view text, size_t pos, const Accept& accept) const {
    Match best{pos, pos, nullptr};
    uint32_t node = 0;
    for (size_t i = pos; i < text.size(); ++i) {
      const auto edge = edges_.find(Edge(node, text[i]));
      if (edge == edges_.end()) break;
      node = edge->second;
      const int32_t entry = entry_of_node_[node];
      if (entry >= 0 && accept(entries_[entry], i + 1)) best = {pos, i + 1, &entries_[entry]};
    }
    return best;
  }
  bool CanStartWith(char c) const { return roots_[static_cast<uint8_t>(c)]; }

 private:
  static uint64_t Edge(uint32_t node, char c) {
    return static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(c);
  }
  std::array<bool, 256> roots_;
  absl::flat_hash_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> entry_of_node_ = {-1};
  std::vector<Entry> entries_;
};

}  // namespace smartgen::tokenizer
