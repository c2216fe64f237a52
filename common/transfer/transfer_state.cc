#include "common/transfer/transfer_state.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>

#include "common/transfer/blocks.h"
#include "common/transfer/transfer.h"

namespace smartgen::transfer {
namespace {

constexpr int kMaxUnits = 64;  // the bits of a mask
constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

uint64_t Key(int layer, int64_t token) {
  return static_cast<uint64_t>(layer) << 32 | static_cast<uint64_t>(token);
}

size_t Index(const BlockId& id) {
  return static_cast<size_t>(id.layer) * kBlocks + static_cast<size_t>(id.block);
}

}  // namespace

// Collects entries and cuts them into messages: by layer in the order of their first entry, tokens
// ascending, neighbours merged.
class TransferState::Gatherer {
 public:
  explicit Gatherer(const TransferState& state) : state_(state) {}

  // `repeated`: those of `units` that were handed out before.
  void Add(int layer, int64_t token, Mask units, Mask repeated) {
    if (groups_.empty() || groups_.back().layer != layer) {
      const auto it = std::find_if(groups_.begin(), groups_.end(),
                                   [&](const Group& group) { return group.layer == layer; });
      // The group that is added to stands last.
      if (it == groups_.end()) {
        groups_.push_back({.layer = layer, .number = groups_.size()});
      } else {
        std::swap(*it, groups_.back());
      }
    }
    groups_.back().entries.push_back({.token = token, .units = units, .repeated = repeated});
  }

  std::vector<Take> Finish() {
    std::sort(groups_.begin(), groups_.end(),
              [](const Group& a, const Group& b) { return a.number < b.number; });
    for (Group& group : groups_) Cut(group);
    return std::move(takes_);
  }

 private:
  struct Entry {
    int64_t token = 0;
    Mask units = 0;
    Mask repeated = 0;
  };
  struct Group {
    int layer = 0;
    size_t number = 0;
    std::vector<Entry> entries;
  };

  // A token may have been added several times, with other units.
  static void Merge(std::vector<Entry>& entries) {
    std::stable_sort(entries.begin(), entries.end(),
                     [](const Entry& a, const Entry& b) { return a.token < b.token; });
    size_t kept = 0;
    for (const Entry& entry : entries) {
      if (kept > 0 && entries[kept - 1].token == entry.token) {
        Entry& same = entries[kept - 1];
        const Mask fresh = (same.units & ~same.repeated) | (entry.units & ~entry.repeated);
        same.units |= entry.units;
        same.repeated = same.units & ~fresh;
      } else {
        entries[kept++] = entry;
      }
    }
    entries.resize(kept);
  }

  void Cut(Group& group) {
    Merge(group.entries);
    takes_.push_back({.layer = group.layer});
    for (size_t i = 0; i < group.entries.size();) {
      const Entry& first = group.entries[i];
      size_t n = 1;
      while (i + n < group.entries.size() &&
             group.entries[i + n].token == first.token + static_cast<int64_t>(n) &&
             group.entries[i + n].units == first.units &&
             group.entries[i + n].repeated == first.repeated) {
        ++n;
      }
      AddRun(group.layer, first, static_cast<int64_t>(n));
      i += n;
    }
  }

  // `count` tokens of the same units: a range for all heads, or one for each run of heads.
  void AddRun(int layer, const Entry& first, int64_t count) {
    const Layer& of = state_.layers_[layer];
    if (first.units == state_.All(layer)) {
      AddRange(layer, first, count, {.first_head = 0, .head_count = 0}, first.units);
      return;
    }
    for (int unit = 0; unit < of.units;) {
      if ((first.units >> unit & 1) == 0) {
        ++unit;
        continue;
      }
      const int heads = std::countr_one(first.units >> unit);
      const Mask mask = ((Mask{1} << heads) - 1) << unit;
      AddRange(
          layer, first, count,
          {.first_head = static_cast<uint8_t>(unit), .head_count = static_cast<uint8_t>(heads)},
          mask);
      unit += heads;
    }
  }

  void AddRange(int layer, const Entry& first, int64_t count, WireRange range, Mask mask) {
    const int64_t unit_bytes = state_.layers_[layer].unit_bytes;
    const int64_t bytes = unit_bytes * std::popcount(mask);
    const int64_t repeated = unit_bytes * std::popcount(mask & first.repeated);
    for (int64_t token = first.token; count > 0;) {
      Take& take = takes_.back();
      const int64_t n = Fit(take, token, count, bytes);
      if (n == 0) {
        takes_.push_back({.layer = layer});
        continue;
      }
      range.begin = static_cast<uint32_t>(token);
      range.count = static_cast<uint16_t>(n);
      take.ranges.push_back(range);
      take.bytes += n * bytes;
      take.repeated_bytes += n * repeated;
      const int64_t prompt = std::clamp<int64_t>(state_.options_.end - token, 0, n);
      take.prompt_bytes += prompt * (bytes - repeated);
      token += n;
      count -= n;
    }
  }

  // How many of `count` tokens from `token` on the message has room for: up to the end of a page
  // where it cannot have all, so that most messages are few segments.
  int64_t Fit(const Take& take, int64_t token, int64_t count, int64_t bytes) const {
    if (take.ranges.size() == kMaxWireRanges) return 0;
    const int64_t room = (state_.options_.max_message_bytes - take.bytes) / bytes;
    int64_t n = std::min({count, kMaxRangeTokens, room});
    if (n <= 0) return take.ranges.empty() ? 1 : 0;
    if (n == count) return n;
    const int64_t page_end = (token + n) / kv::kPageTokens * kv::kPageTokens;
    return page_end > token ? page_end - token : n;
  }

  const TransferState& state_;
  std::vector<Group> groups_;
  std::vector<Take> takes_;
};

absl::Status TransferState::CheckOrder(std::span<const BlockId> order, int layers) {
  std::vector<bool> seen(static_cast<size_t>(layers) * kBlocks);
  for (const BlockId& id : order) {
    if (id.layer < 0 || id.layer >= layers || id.block < 0 || id.block >= kBlocks) {
      return base::InvalidArgument("order: layer {} (of {}), block {} (of {}): no such block",
                                   id.layer, layers, id.block, kBlocks);
    }
    if (seen[Index(id)]) {
      return base::InvalidArgument("order: layer {}, block {}: twice", id.layer, id.block);
    }
    seen[Index(id)] = true;
  }
  return absl::OkStatus();
}

TransferState::TransferState(const kv::KvLayout& layout, Options options)
    : options_(std::move(options)) {
  const int layers = layout.num_layers();
  const int64_t tokens = options_.end - options_.begin;
  for (int l = 0; l < layers; ++l) {
    const int heads = layout.layers[l].kv_heads;
    const int units = heads <= kMaxUnits ? heads : 1;
    const int64_t begin = TravelBegin(layout.layers[l].window, options_.begin, options_.end);
    layers_.push_back({.tokens = std::vector<uint8_t>(static_cast<size_t>(tokens)),
                       .begin = begin,
                       .left = options_.end - begin,
                       .units = units,
                       .unit_bytes = layout.TokenBytes(l) / units});
    prompt_bytes_ += (options_.end - begin) * layout.TokenBytes(l);
  }
  unready_.resize(static_cast<size_t>(layers) * kBlocks);
  for (int l = 0; l < layers; ++l) {
    for (int block = 0; block < kBlocks; ++block) {
      const TokenRange travels = Tokens({.layer = l, .block = block});
      unready_[Index({l, block})] =
          static_cast<uint16_t>(travels.empty() ? 0 : travels.end - travels.begin);
    }
  }
  limit_ = options_.pushed < 0 ? kNoLimit : static_cast<uint64_t>(options_.pushed);
  order_ = std::move(options_.order);
  if (order_.empty()) return;
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  rank_.resize(unready_.size(), kNone);
  for (size_t r = 0; r < order_.size(); ++r) rank_[Index(order_[r])] = static_cast<uint32_t>(r);
  for (size_t i = 0; i < rank_.size(); ++i) {
    if (rank_[i] != kNone) continue;
    rank_[i] = static_cast<uint32_t>(order_.size());
    order_.push_back({static_cast<int>(i / kBlocks), static_cast<int>(i % kBlocks)});
  }
}

int64_t TravelBytes(const kv::KvLayout& layout, int64_t begin, int64_t end) {
  int64_t bytes = 0;
  for (int l = 0; l < layout.num_layers(); ++l) {
    bytes += (end - TravelBegin(layout.layers[l].window, begin, end)) * layout.TokenBytes(l);
  }
  return bytes;
}

TokenRange TransferState::Tokens(const BlockId& id) const {
  const TokenRange all = BlockTokens(id.block, options_.end);
  return {std::max(all.begin, layers_[id.layer].begin), all.end};
}

BlockId TransferState::BlockAt(uint32_t rank) const {
  if (!order_.empty()) return order_[rank];
  return {static_cast<int>(rank / kBlocks), static_cast<int>(rank % kBlocks)};
}

TransferState::Mask TransferState::All(int layer) const {
  return ~Mask{0} >> (kMaxUnits - layers_[layer].units);
}

TransferState::Mask TransferState::Given(int layer, int64_t token) const {
  const uint8_t flags = Flags(layer, token);
  if (flags & kHandedOut) return All(layer);
  return flags & kPartly ? partly_.at(Key(layer, token)) : 0;
}

int64_t TransferState::BytesLeft(int layer, int64_t token) const {
  return layers_[layer].unit_bytes * std::popcount(All(layer) & ~Given(layer, token));
}

void TransferState::Give(int layer, int64_t token, Mask units) {
  uint8_t& flags = Flags(layer, token);
  const Mask given = Given(layer, token) | units;
  if (given != All(layer)) {
    flags |= kPartly;
    partly_[Key(layer, token)] = given;
    return;
  }
  if (flags & kPartly) partly_.erase(Key(layer, token));
  flags = kReady | kHandedOut;
  if (token >= options_.end) {
    --layers_[layer].born_left;
  } else if (--layers_[layer].left == 0) {
    OnLayerGiven(layer);
  }
}

void TransferState::OnLayerGiven(int layer) {
  for (const int64_t token : layers_[layer].born_waiting) born_ready_.emplace_back(layer, token);
  layers_[layer].born_waiting.clear();
}

void TransferState::SetReady(int layer, int64_t begin, int64_t end) {
  end = std::min(end, options_.end);
  for (int64_t token = std::max(begin, layers_[layer].begin); token < end;) {
    const BlockId id{layer, BlockOf(token, options_.end)};
    const int64_t stop = std::min(end, BlockTokens(id.block, options_.end).end);
    uint16_t fresh = 0;
    for (; token < stop; ++token) {
      uint8_t& flags = Flags(layer, token);
      if (flags & kReady) continue;
      flags |= kReady;
      ++fresh;
    }
    uint16_t& unready = unready_[Index(id)];
    unready = static_cast<uint16_t>(unready - fresh);
    if (fresh == 0 || unready > 0) continue;
    ready_.push_back(rank_.empty() ? static_cast<uint32_t>(Index(id)) : rank_[Index(id)]);
    std::push_heap(ready_.begin(), ready_.end(), std::greater<>());
  }
}

void TransferState::PromptDone() {
  prompt_done_ = true;
  if (options_.deliver_rest) limit_ = kNoLimit;
}

std::vector<Take> TransferState::Born(int layer, int64_t token) {
  Layer& of = layers_[layer];
  const auto index = static_cast<size_t>(token - options_.begin);
  if (of.tokens.size() <= index) of.tokens.resize(index + 1);
  if (of.tokens[index] & kReady) return {};
  of.tokens[index] = kReady;
  const bool at_once = of.left == 0 && of.born_left == 0;
  ++of.born_left;
  Gatherer gatherer(*this);
  if (at_once) {
    gatherer.Add(layer, token, All(layer), 0);
    Give(layer, token, All(layer));
  } else if (of.left == 0) {
    born_ready_.emplace_back(layer, token);
  } else {
    of.born_waiting.push_back(token);
  }
  return gatherer.Finish();
}

bool TransferState::FindNext(int* layer, int64_t* token, int64_t* block_end) {
  for (; !born_ready_.empty(); born_ready_.pop_front()) {
    std::tie(*layer, *token) = born_ready_.front();
    *block_end = *token + 1;
    if ((Flags(*layer, *token) & kHandedOut) == 0) return true;
  }
  while (!ready_.empty() && ready_.front() < limit_) {
    const BlockId id = BlockAt(ready_.front());
    const TokenRange tokens = Tokens(id);
    for (*token = tokens.begin; *token < tokens.end; ++*token) {
      if (Flags(id.layer, *token) & kHandedOut) continue;
      *layer = id.layer;
      *block_end = tokens.end;
      return true;
    }
    std::pop_heap(ready_.begin(), ready_.end(), std::greater<>());
    ready_.pop_back();
  }
  return false;
}

int64_t TransferState::NextBytes() {
  int layer = 0;
  int64_t token = 0;
  int64_t block_end = 0;
  return FindNext(&layer, &token, &block_end) ? BytesLeft(layer, token) : 0;
}

std::vector<Take> TransferState::TakeNext(int64_t max_bytes) {
  Gatherer gatherer(*this);
  int layer = 0;
  int64_t token = 0;
  int64_t block_end = 0;
  int64_t taken = 0;
  while (FindNext(&layer, &token, &block_end)) {
    for (; token < block_end; ++token) {
      if (Flags(layer, token) & kHandedOut) continue;
      const int64_t bytes = BytesLeft(layer, token);
      if (taken > 0 && taken + bytes > max_bytes) return gatherer.Finish();
      taken += bytes;
      const Mask units = All(layer) & ~Given(layer, token);
      gatherer.Add(layer, token, units, 0);
      Give(layer, token, units);
    }
  }
  return gatherer.Finish();
}

std::vector<Take> TransferState::Fetch(int layer, std::span<const kv::HeadRange> ranges,
                                       bool again) {
  Gatherer gatherer(*this);
  const bool whole = layers_[layer].units == 1;
  for (const kv::HeadRange& range : ranges) {
    const Mask asked = range.head < 0 || whole ? All(layer) : Mask{1} << range.head;
    const int64_t end = std::min(range.end, KnownEnd(layer));
    for (int64_t token = std::max(range.begin, options_.begin); token < end; ++token) {
      if ((Flags(layer, token) & kReady) == 0) continue;
      const Mask given = Given(layer, token);
      const Mask fresh = asked & ~given;
      const Mask repeated = again ? asked & given : 0;
      if ((fresh | repeated) == 0) continue;
      gatherer.Add(layer, token, fresh | repeated, repeated);
      if (fresh != 0) Give(layer, token, fresh);
    }
  }
  return gatherer.Finish();
}

std::vector<Take> TransferState::Resend(int layer, int64_t begin, int64_t end) {
  Gatherer gatherer(*this);
  end = std::min(end, KnownEnd(layer));
  for (int64_t token = std::max(begin, options_.begin); token < end; ++token) {
    const Mask given = Given(layer, token);
    if (given != 0) gatherer.Add(layer, token, given, given);
  }
  return gatherer.Finish();
}

}  // namespace smartgen::transfer
