#include "prefill_server/metadata_source.h"

#include <algorithm>
#include <utility>

namespace smartgen::prefill_server {
namespace {

// Queries that channels are chosen from: sums over more hardly change.
constexpr int64_t kSampledQueries = 256;
// Of a message that goes again: as a chunk of a prompt, far below what a message may carry.
constexpr int64_t kResentTokens = 2048;

}  // namespace

MetadataSource::MetadataSource(std::shared_ptr<const selector::KvSelector> selector,
                               int64_t token_capacity, int64_t begin)
    : selector_(std::move(selector)),
      store_(&selector_->metadata(), token_capacity),
      begin_(begin),
      next_(static_cast<size_t>(selector_->metadata().num_layers()), begin) {}

absl::Status MetadataSource::OnQueries(int layer, std::span<const float> queries, int64_t ld,
                                       const Sink& sink) {
  if (selector_->metadata().HeaderBytes(layer) == 0 || !store_.Header(layer).empty()) {
    return absl::OkStatus();
  }
  const auto width = static_cast<size_t>(selector_->query_values(layer));
  // The last row may be cut off behind its queries.
  const int64_t rows =
      (static_cast<int64_t>(queries.size()) - static_cast<int64_t>(width)) / ld + 1;
  const int64_t step = std::max<int64_t>(1, rows / kSampledQueries);
  std::vector<float> sample;
  for (int64_t row = 0; row < rows; row += step) {
    const auto values = queries.subspan(static_cast<size_t>(row * ld), width);
    sample.insert(sample.end(), values.begin(), values.end());
  }
  RETURN_IF_ERROR(selector_->ChooseChannels(layer, sample, store_));
  return sink(layer, 0, 0, true, store_.Header(layer));
}

absl::Status MetadataSource::OnLayer(int layer, int64_t end, kv::KvSequence& sequence,
                                     const Sink& sink) {
  int64_t& next = next_[static_cast<size_t>(layer)];
  if (selector_->metadata().UnitBytes(layer) == 0 || next >= end) return absl::OkStatus();
  RETURN_IF_ERROR(
      selector_->Extend(layer, sequence, store_.FirstMissing(layer, 0, end), end, store_));
  std::vector<std::byte> bytes;
  RETURN_IF_ERROR(store_.Export(layer, next, end, bytes));
  RETURN_IF_ERROR(sink(layer, next, end, false, std::move(bytes)));
  next = end;
  return absl::OkStatus();
}

absl::Status MetadataSource::Resend(int layer, int64_t begin, int64_t end, const Sink& sink) const {
  if (layer < 0 || layer >= store_.layout().num_layers() || begin < 0 || begin > end) {
    return base::InvalidArgument("layer {} of {}, tokens [{}, {}): no such range", layer,
                                 store_.layout().num_layers(), begin, end);
  }
  if (store_.layout().HeaderBytes(layer) > 0) {
    std::vector<std::byte> header = store_.Header(layer);
    if (header.empty()) return absl::OkStatus();  // nothing of the layer was handed out
    RETURN_IF_ERROR(sink(layer, 0, 0, true, std::move(header)));
  }
  end = std::min(end, next_[static_cast<size_t>(layer)]);
  for (int64_t at = std::max(begin, begin_); at < end; at += kResentTokens) {
    const int64_t until = std::min(at + kResentTokens, end);
    std::vector<std::byte> bytes;
    RETURN_IF_ERROR(store_.Export(layer, at, until, bytes));
    RETURN_IF_ERROR(sink(layer, at, until, false, std::move(bytes)));
  }
  return absl::OkStatus();
}

}  // namespace smartgen::prefill_server
