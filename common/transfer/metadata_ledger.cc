#include "common/transfer/metadata_ledger.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace smartgen::transfer {

MetadataLedger::MetadataLedger(int layers, int64_t capacity)
    : capacity_(capacity), layers_(static_cast<size_t>(layers)) {}

uint64_t MetadataLedger::Note(int layer, int64_t begin, int64_t end, bool header, uint64_t bytes) {
  Layer& books = layers_[static_cast<size_t>(layer)];
  if (header) return std::exchange(books.header, true) ? bytes : 0;
  end = std::min(end, capacity_);
  if (begin >= end) return 0;
  const int64_t tokens = end - begin;
  int64_t known = 0;
  // The first run that touches [begin, end); all that do become one.
  auto it = books.runs.upper_bound(begin);
  if (it != books.runs.begin() && std::prev(it)->second >= begin) --it;
  int64_t first = begin;
  int64_t last = end;
  while (it != books.runs.end() && it->first <= end) {
    known += std::max<int64_t>(0, std::min(it->second, end) - std::max(it->first, begin));
    first = std::min(first, it->first);
    last = std::max(last, it->second);
    it = books.runs.erase(it);
  }
  books.runs[first] = last;
  // Messages are at most kMaxOpaqueBytes, so that the product fits.
  return bytes * static_cast<uint64_t>(known) / static_cast<uint64_t>(tokens);
}

}  // namespace smartgen::transfer
