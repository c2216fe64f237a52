#include "common/transfer/arrival.h"

#include <algorithm>
#include <utility>

#include "common/transfer/transfer.h"

namespace smartgen::transfer {
namespace {

void Append(std::vector<std::span<std::byte>>* segments, std::byte* data, size_t bytes) {
  if (!segments->empty() && segments->back().data() + segments->back().size() == data) {
    segments->back() = {segments->back().data(), segments->back().size() + bytes};
  } else {
    segments->emplace_back(data, bytes);
  }
}

}  // namespace

Arrival::Arrival(std::shared_ptr<kv::KvSequence> sequence, int layer, std::vector<WireRange> ranges,
                 std::span<const Arrival* const> others)
    : sequence_(std::move(sequence)), layer_(layer) {
  for (const WireRange& range : ranges) {
    parts_.push_back(Classify(range, others));
    AddPieces(parts_.back());
  }
}

int Arrival::Heads(const WireRange& range) const {
  return range.head_count == 0 ? sequence_->layout().layers[layer_].kv_heads : range.head_count;
}

bool Arrival::Writes(const kv::KvSequence& sequence, int64_t token, int head) const {
  const auto page = static_cast<size_t>(token / kv::kPageTokens);
  return std::any_of(pieces_.begin(), pieces_.end(), [&](const Piece& piece) {
    return token >= piece.begin && token < piece.end && (piece.head < 0 || piece.head == head) &&
           sequence_->pages()[page] == sequence.pages()[page];
  });
}

Arrival::Part Arrival::Classify(const WireRange& range, std::span<const Arrival* const> others) {
  const int heads = Heads(range);
  const auto row = static_cast<uint64_t>(2 * sequence_->layout().RowBytes(layer_));
  Part part{.range = range};
  payload_bytes_ += row * static_cast<uint64_t>(heads * range.count);
  std::vector<bool> taken(static_cast<size_t>(heads) * range.count);
  uint64_t entries = 0;
  size_t at = 0;
  for (int64_t token = range.begin; token < range.end(); ++token) {
    for (int h = 0; h < heads; ++h, ++at) {
      const int head = range.first_head + h;
      // A reader may be at any local entry already, so that not one may be written again. And never
      // two writers.
      taken[at] = sequence_->HeadLocal(layer_, head, token) ||
                  std::any_of(others.begin(), others.end(), [&](const Arrival* other) {
                    return other->layer_ == layer_ &&
                           other->sequence_->pool() == sequence_->pool() &&
                           other->Writes(*sequence_, token, head);
                  });
      entries += taken[at] ? 1 : 0;
    }
  }
  duplicate_bytes_ += entries * row;
  if (entries > 0) part.taken = std::move(taken);
  return part;
}

void Arrival::AddPieces(const Part& part) {
  const WireRange& range = part.range;
  const int heads = Heads(range);
  if (part.taken.empty() && range.head_count == 0) {
    pieces_.push_back({.head = -1, .begin = range.begin, .end = range.end()});
    return;
  }
  for (int h = 0; h < heads; ++h) {
    Piece run{.head = range.first_head + h};
    for (int64_t t = 0; t < range.count; ++t) {
      if (!part.taken.empty() && part.taken[static_cast<size_t>(t * heads + h)]) continue;
      const int64_t token = range.begin + t;
      if (run.end != token || run.begin == run.end) {
        if (run.begin < run.end) pieces_.push_back(run);
        run.begin = token;
      }
      run.end = token + 1;
    }
    if (run.begin < run.end) pieces_.push_back(run);
  }
}

// The slow way, for ranges of which something is here: row by row, in the order of the wire.
void Arrival::AddRows(const Part& part, std::byte** scratch,
                      std::vector<std::span<std::byte>>* segments) const {
  const kv::KvLayout& layout = sequence_->layout();
  const WireRange& range = part.range;
  const int heads = Heads(range);
  const auto bytes = static_cast<size_t>(layout.RowBytes(layer_));
  const auto add = [&](int64_t begin, int64_t end, int h, bool value) {
    for (int64_t token = begin; token < end; ++token) {
      std::byte* to = nullptr;
      if (part.taken[static_cast<size_t>((token - range.begin) * heads + h)]) {
        to = std::exchange(*scratch, *scratch + bytes);
      } else {
        const int row = static_cast<int>(token % kv::kPageTokens);
        const int head = range.first_head + h;
        to = sequence_->Page(layer_, token / kv::kPageTokens) +
             (value ? layout.VOffset(layer_, head, row) : layout.KOffset(layer_, head, row));
      }
      Append(segments, to, bytes);
    }
  };
  const auto add_pages = [&](int first, int last) {
    for (int64_t begin = range.begin; begin < range.end();) {
      const int64_t end = std::min(range.end(), (begin / kv::kPageTokens + 1) * kv::kPageTokens);
      for (int h = first; h < last; ++h) add(begin, end, h, false);
      for (int h = first; h < last; ++h) add(begin, end, h, true);
      begin = end;
    }
  };
  if (range.head_count == 0) return add_pages(0, heads);
  for (int h = 0; h < heads; ++h) add_pages(h, h + 1);
}

std::vector<std::span<std::byte>> Arrival::Segments() {
  std::vector<std::span<std::byte>> segments;
  if (pieces_.empty()) return segments;
  if (duplicate_bytes_ > 0) scratch_ = std::make_unique<std::byte[]>(duplicate_bytes_);
  std::byte* scratch = scratch_.get();
  for (const Part& part : parts_) {
    const WireRange& range = part.range;
    if (!part.taken.empty()) {
      AddRows(part, &scratch, &segments);
    } else if (range.head_count == 0) {
      for (const auto& s : sequence_->Segments(layer_, range.begin, range.end())) {
        Append(&segments, s.data(), s.size());
      }
    } else {
      for (int head = range.first_head; head < range.first_head + range.head_count; ++head) {
        for (const auto& s : sequence_->Segments(layer_, head, range.begin, range.end())) {
          Append(&segments, s.data(), s.size());
        }
      }
    }
  }
  return segments;
}

std::vector<LayerRange> Arrival::ranges() const {
  std::vector<LayerRange> ranges;
  for (const Part& part : parts_) {
    ranges.push_back({.layer = layer_, .begin = part.range.begin, .end = part.range.end()});
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const LayerRange& a, const LayerRange& b) { return a.begin < b.begin; });
  std::vector<LayerRange> merged;
  for (const LayerRange& range : ranges) {
    if (!merged.empty() && range.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, range.end);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

void Arrival::Mark() {
  for (const Piece& piece : pieces_) {
    if (piece.head < 0) {
      sequence_->MarkLocal(layer_, piece.begin, piece.end);
    } else {
      sequence_->MarkHeadLocal(layer_, piece.head, piece.begin, piece.end);
    }
  }
}

}  // namespace smartgen::transfer
