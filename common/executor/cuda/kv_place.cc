#include "common/executor/cuda/kv_place.h"

#include <bit>

namespace smartgen::executor::cuda {
namespace {

// Rows that go to pages in one copy, and what such copies may hold of the device until they are
// done.
constexpr size_t kMostPieces = 512 << 10;
constexpr size_t kMostStaged = 4 << 20;

constexpr uint16_t kAllTokens = 0xffff;

PagedLayer LayerOf(const kv::KvLayout& layout, int layer, std::byte* base) {
  return {.base = base,
          .page_bytes = layout.PageBytes(layer),
          .kv_heads = layout.layers[layer].kv_heads,
          .head_dim = layout.layers[layer].head_dim,
          .element = static_cast<Element>(layout.dtype)};
}

// Tokens [begin, end) as bits of page `page`.
uint16_t TokenBits(int64_t page, int64_t begin, int64_t end) {
  const int64_t first = std::max<int64_t>(begin - page * kPage, 0);
  const int64_t last = std::min<int64_t>(end - page * kPage, kPage);
  return static_cast<uint16_t>(((1u << last) - 1) & ~((1u << first) - 1));
}

class HostKv final : public KvPlace {
 public:
  explicit HostKv(const kv::PageMemory* memory) : memory_(memory) {}

  bool in_host_memory() const override { return true; }
  uint64_t evictions() const override { return 0; }
  void Begin() override { pool_ = nullptr; }
  absl::StatusOr<std::vector<int32_t>> Map(kv::KvSequence& sequence, int64_t end) override {
    if (sequence.pool()->memory() != memory_) {
      return base::InvalidArgument(
          "kv_location host: want a KV pool of the executor's page memory, got another's");
    }
    if (pool_ != nullptr && pool_ != sequence.pool()) {
      return base::InvalidArgument("kv_location host: sequences of one call are of two KV pools");
    }
    pool_ = sequence.pool();
    const auto pages = sequence.pages().first(static_cast<size_t>((end + kPage - 1) / kPage));
    return std::vector<int32_t>(pages.begin(), pages.end());
  }
  PagedLayer Layer(const kv::KvSequence& sequence, int layer) const override {
    return LayerOf(sequence.layout(), layer, sequence.pool()->Data(layer, 0));
  }
  absl::Status Bring(kv::KvSequence&, std::span<const int32_t>, int, int64_t, int64_t) override {
    return absl::OkStatus();
  }
  absl::Status Bring(kv::KvSequence&, std::span<const int32_t>, int, int,
                     std::span<const int32_t>) override {
    return absl::OkStatus();
  }
  absl::Status Flush() override { return absl::OkStatus(); }
  void Written(std::span<const int32_t>, int, int64_t, int64_t) override {}
  void Forget(kv::KvSequence&, int64_t) override {}

 private:
  const kv::PageMemory* const memory_;
  const kv::KvPool* pool_ = nullptr;  // since Begin
};

class DeviceKv final : public KvPlace {
 public:
  static absl::StatusOr<std::unique_ptr<KvPlace>> Create(Context* context,
                                                         const kv::KvLayout& layout,
                                                         uint64_t bytes) {
    const auto page_bytes = static_cast<uint64_t>(layout.PageBytesTotal());
    const uint64_t slots = std::min<uint64_t>(bytes / page_bytes, INT32_MAX);
    if (slots == 0) {
      return base::ResourceExhausted(
          "KV on the device: want at least {} bytes (one page of {} tokens), {} are left: give the "
          "executor more memory, or use kv_location host",
          page_bytes, kPage, bytes);
    }
    auto kv = std::unique_ptr<DeviceKv>(new DeviceKv(context, layout, slots));
    ASSIGN_OR_RETURN(kv->memory_, context->device().Allocate(slots * page_bytes));
    std::byte* base = kv->memory_->data();
    for (int layer = 0; layer < layout.num_layers(); ++layer) {
      kv->base_.push_back(base);
      base += static_cast<int64_t>(slots) * layout.PageBytes(layer);
    }
    return kv;
  }

  bool in_host_memory() const override { return false; }
  uint64_t evictions() const override { return evictions_; }
  void Begin() override { ++work_; }

  absl::StatusOr<std::vector<int32_t>> Map(kv::KvSequence& sequence, int64_t end) override {
    const auto pages = sequence.pages().first(static_cast<size_t>((end + kPage - 1) / kPage));
    std::vector<int32_t> mapped;
    mapped.reserve(pages.size());
    for (const kv::PageId page : pages) {
      ASSIGN_OR_RETURN(const int32_t slot, SlotOf(sequence.pool()->stamp(page)));
      mapped.push_back(slot);
    }
    return mapped;
  }

  PagedLayer Layer(const kv::KvSequence&, int layer) const override {
    return LayerOf(layout_, layer, base_[static_cast<size_t>(layer)]);
  }

  absl::Status Bring(kv::KvSequence& sequence, std::span<const int32_t> pages, int layer,
                     int64_t begin, int64_t end) override {
    if (begin >= end) return absl::OkStatus();
    const int heads = layout_.layers[layer].kv_heads;
    for (int64_t page = begin / kPage; page * kPage < end; ++page) {
      const uint16_t wanted = TokenBits(page, begin, end);
      uint16_t* const have = Have(pages[static_cast<size_t>(page)], layer);
      const auto whole = [](uint16_t bits) { return bits == kAllTokens; };
      if (std::all_of(have, have + heads, whole)) continue;
      if (wanted == kAllTokens) {  // what is there already is what the host has
        const auto bytes = static_cast<size_t>(layout_.PageBytes(layer));
        const absl::Status status =
            context_->compute().CopyIn(To(pages, layer, page), {sequence.Page(layer, page), bytes});
        if (!status.ok()) {
          DropPieces();  // there is no Flush after an error
          return status;
        }
        std::fill(have, have + heads, kAllTokens);
        continue;
      }
      for (int head = 0; head < heads; ++head) {
        RETURN_IF_ERROR(BringBits(sequence, pages, layer, head, page, wanted));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Bring(kv::KvSequence& sequence, std::span<const int32_t> pages, int layer, int head,
                     std::span<const int32_t> tokens) override {
    for (size_t i = 0; i < tokens.size();) {
      const int64_t page = tokens[i] / kPage;
      uint16_t wanted = 0;
      for (; i < tokens.size() && tokens[i] / kPage == page; ++i) {
        wanted = static_cast<uint16_t>(wanted | 1u << (tokens[i] % kPage));
      }
      RETURN_IF_ERROR(BringBits(sequence, pages, layer, head, page, wanted));
    }
    return absl::OkStatus();
  }

  absl::Status Flush() override {
    const absl::Status status = Scatter();
    if (!status.ok()) DropPieces();
    pieces_.Clear();
    return status;
  }

  void Written(std::span<const int32_t> pages, int layer, int64_t begin, int64_t end) override {
    for (int64_t page = begin / kPage; page * kPage < end; ++page) {
      uint16_t* const have = Have(pages[static_cast<size_t>(page)], layer);
      const uint16_t bits = TokenBits(page, begin, end);
      for (int head = 0; head < layout_.layers[layer].kv_heads; ++head) {
        have[head] = static_cast<uint16_t>(have[head] | bits);
      }
    }
  }

  void Forget(kv::KvSequence& sequence, int64_t token) override {
    const kv::PageId page = sequence.pages()[static_cast<size_t>(token / kPage)];
    const auto it = slots_.find(sequence.pool()->stamp(page));
    if (it == slots_.end()) return;
    const auto bit = static_cast<uint16_t>(1u << (token % kPage));
    uint16_t* const have = Have(it->second, 0);
    for (int64_t head = 0; head < heads_a_page_; ++head) {
      have[head] = static_cast<uint16_t>(have[head] & ~bit);
    }
  }

 private:
  struct Slot {
    uint64_t stamp = 0;  // 0: free
    uint64_t work = 0;   // that used it last
    std::list<int32_t>::iterator place;
  };

  DeviceKv(Context* context, const kv::KvLayout& layout, uint64_t slots)
      : context_(context), layout_(layout), books_(slots) {
    for (const kv::LayerLayout& layer : layout.layers) {
      first_head_.push_back(heads_a_page_);
      heads_a_page_ += layer.kv_heads;
    }
    have_.resize(slots * static_cast<size_t>(heads_a_page_));
    for (size_t slot = 0; slot < slots; ++slot) {
      books_[slot].place = oldest_first_.insert(oldest_first_.end(), static_cast<int32_t>(slot));
    }
  }

  // Of what is on the device of a page's layer: bit t of head h is token t.
  uint16_t* Have(int32_t slot, int layer) {
    return have_.data() + slot * heads_a_page_ + first_head_[static_cast<size_t>(layer)];
  }
  std::byte* To(std::span<const int32_t> pages, int layer, int64_t page) const {
    return base_[static_cast<size_t>(layer)] +
           pages[static_cast<size_t>(page)] * layout_.PageBytes(layer);
  }

  absl::StatusOr<int32_t> SlotOf(uint64_t stamp) {
    auto it = slots_.find(stamp);
    if (it == slots_.end()) {
      const int32_t slot = oldest_first_.front();
      Slot& book = books_[static_cast<size_t>(slot)];
      if (book.work == work_) {
        return base::ResourceExhausted(
            "KV on the device: {} pages of {} tokens are not enough for the sequences of one call: "
            "give the executor more memory, or use kv_location host",
            books_.size(), kPage);
      }
      if (book.stamp != 0) {
        slots_.erase(book.stamp);
        ++evictions_;
      }
      book.stamp = stamp;
      std::fill_n(Have(slot, 0), heads_a_page_, uint16_t{0});
      it = slots_.emplace(stamp, slot).first;
    }
    Slot& book = books_[static_cast<size_t>(it->second)];
    book.work = work_;
    oldest_first_.splice(oldest_first_.end(), oldest_first_, book.place);
    return it->second;
  }

  // Rows that go to pages of one layer in one copy and one kernel. Ranges count tokens as if
  // `pages` followed each other.
  struct Pieces {
    int layer = 0;
    std::vector<StagedRange> ranges;
    std::vector<int32_t> pages;
    std::vector<std::byte> rows;
    void Clear() {
      ranges.clear();
      pages.clear();
      rows.clear();
    }
  };

  // Notes runs of tokens that are wanted and not there.
  absl::Status BringBits(kv::KvSequence& sequence, std::span<const int32_t> pages, int layer,
                         int head, int64_t page, uint16_t wanted) {
    const int32_t slot = pages[static_cast<size_t>(page)];
    uint16_t& have = Have(slot, layer)[head];
    unsigned missing = wanted & ~static_cast<unsigned>(have);
    if (missing == 0) return absl::OkStatus();
    if (pieces_.rows.size() >= kMostPieces) RETURN_IF_ERROR(Flush());
    pieces_.layer = layer;
    if (pieces_.pages.empty() || pieces_.pages.back() != slot) pieces_.pages.push_back(slot);
    const auto before = static_cast<int32_t>((pieces_.pages.size() - 1) * kPage);
    const std::byte* const from = sequence.Page(layer, page);
    while (missing != 0) {
      const int first = std::countr_zero(missing);
      const int count = std::countr_one(missing >> first);
      const int64_t bytes = count * layout_.RowBytes(layer);
      pieces_.ranges.push_back({.head = head,
                                .begin = before + first,
                                .end = before + first + count,
                                .offset = static_cast<int64_t>(pieces_.rows.size())});
      for (const int64_t offset :
           {layout_.KOffset(layer, head, first), layout_.VOffset(layer, head, first)}) {
        pieces_.rows.insert(pieces_.rows.end(), from + offset, from + offset + bytes);
      }
      missing &= ~(((1u << count) - 1) << first);
    }
    have = static_cast<uint16_t>(have | wanted);
    return absl::OkStatus();
  }

  absl::Status Scatter() {
    if (pieces_.ranges.empty()) return absl::OkStatus();
    if (context_->finishes() == staged_at_ && uploads_.bytes() >= kMostStaged) {
      RETURN_IF_ERROR(context_->FinishCompute());
    }
    if (context_->finishes() != staged_at_) uploads_.Reset();
    const auto ranges = std::as_bytes(std::span(pieces_.ranges));
    const auto pages = std::as_bytes(std::span(pieces_.pages));
    ASSIGN_OR_RETURN(std::byte* const staged,
                     uploads_.AddTogether(*context_, {pieces_.rows, ranges, pages}));
    staged_at_ = context_->finishes();
    const size_t after_rows = Uploads::After(pieces_.rows.size());
    PagedLayer place = LayerOf(layout_, pieces_.layer, base_[static_cast<size_t>(pieces_.layer)]);
    place.pages =
        reinterpret_cast<const int32_t*>(staged + after_rows + Uploads::After(ranges.size()));
    return Launched(CopyRanges({.layer = place,
                                .ranges = reinterpret_cast<const StagedRange*>(staged + after_rows),
                                .count = static_cast<int>(pieces_.ranges.size()),
                                // Of one head each, where the grid is made for all of them.
                                .most_tokens = std::max<int64_t>(kPage / place.kv_heads, 1),
                                .staging = staged,
                                .direction = Direction::kScatter},
                               context_->stream()),
                    "KV rows to their pages");
  }

  // What was noted and not brought is not there.
  void DropPieces() {
    for (const StagedRange& range : pieces_.ranges) {
      const int32_t slot = pieces_.pages[static_cast<size_t>(range.begin / kPage)];
      const uint16_t bits = TokenBits(range.begin / kPage, range.begin, range.end);
      uint16_t& have = Have(slot, pieces_.layer)[range.head];
      have = static_cast<uint16_t>(have & ~bits);
    }
    pieces_.Clear();
  }

  Context* const context_;
  const kv::KvLayout layout_;
  std::unique_ptr<device::Memory> memory_;
  std::vector<std::byte*> base_;  // of each layer
  std::vector<int64_t> first_head_;
  int64_t heads_a_page_ = 0;
  std::vector<Slot> books_;
  std::vector<uint16_t> have_;
  std::list<int32_t> oldest_first_;
  std::unordered_map<uint64_t, int32_t> slots_;  // by stamp
  uint64_t work_ = 1;
  uint64_t evictions_ = 0;
  Pieces pieces_;           // noted, not queued yet
  Uploads uploads_;         // of pieces that are on their way
  uint64_t staged_at_ = 0;  // context_->finishes() then
};

}  // namespace

std::unique_ptr<KvPlace> NewHostKv(const kv::PageMemory* memory) {
  return std::make_unique<HostKv>(memory);
}

absl::StatusOr<std::unique_ptr<KvPlace>> NewDeviceKv(Context* context, const kv::KvLayout& layout,
                                                     uint64_t bytes) {
  return DeviceKv::Create(context, layout, bytes);
}

}  // namespace smartgen::executor::cuda
