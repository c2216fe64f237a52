#include "common/executor/cuda/device_step.h"

#include <algorithm>

namespace smartgen::executor::cuda {
namespace {

std::unique_ptr<DeviceStepBuffers> TakeBuffers(DeviceStepParts& parts) {
  if (parts.spare.empty()) return std::make_unique<DeviceStepBuffers>();
  std::unique_ptr<DeviceStepBuffers> buffers = std::move(parts.spare.back());
  parts.spare.pop_back();
  return buffers;
}

}  // namespace

absl::Status RunJobs(DeviceStepParts& parts, std::span<const ReadJob> jobs,
                     DeviceStepBuffers& buffers) {
  if (jobs.empty()) return absl::OkStatus();
  Context& context = *parts.context;
  const int layer = jobs[0].layer;
  const model::LayerConfig& l = parts.config->layers[static_cast<size_t>(layer)];
  const int64_t columns = QColumns(l);
  const auto count = static_cast<int64_t>(jobs.size());
  RETURN_IF_ERROR(buffers.parts.Reserve(context, 2 * count * columns));
  RETURN_IF_ERROR(buffers.lse.Reserve(context, count * l.num_heads));
  RETURN_IF_ERROR(buffers.host_parts.Reserve(context, 2 * count * columns));
  RETURN_IF_ERROR(buffers.host_lse.Reserve(context, count * l.num_heads));
  parts.kv->Begin();
  std::vector<std::vector<int32_t>> pages;
  for (const ReadJob& job : jobs) {
    int64_t end = job.end;
    if (!job.index.empty()) end = *std::max_element(job.index.begin(), job.index.end()) + 1;
    ASSIGN_OR_RETURN(pages.emplace_back(), parts.kv->Map(*job.sequence, end));
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    const ReadJob& job = jobs[i];
    if (job.index.empty()) {
      RETURN_IF_ERROR(parts.kv->Bring(*job.sequence, pages[i], layer, job.begin, job.end));
      continue;
    }
    for (int head = 0; head < l.num_kv_heads; ++head) {
      const auto tokens =
          job.index.subspan(static_cast<size_t>(head * job.k), static_cast<size_t>(job.k));
      RETURN_IF_ERROR(parts.kv->Bring(*job.sequence, pages[i], layer, head, tokens));
    }
  }
  RETURN_IF_ERROR(parts.kv->Flush());
  std::vector<AttendSlot> slots;
  int64_t most = 1;
  for (int64_t i = 0; i < count; ++i) {
    const ReadJob& job = jobs[static_cast<size_t>(i)];
    AttendSlot slot{.row = i, .begin = job.begin, .end = job.end};
    if (!job.index.empty()) {
      slot.begin = 0;
      slot.end = slot.index_stride = job.k;
      ASSIGN_OR_RETURN(slot.index, buffers.job_uploads.Add(context, job.index));
    }
    ASSIGN_OR_RETURN(slot.pages, buffers.job_uploads.Add(context, pages[static_cast<size_t>(i)]));
    most = std::max(most, slot.end - slot.begin);
    slots.push_back(slot);
    std::copy_n(job.q, columns, buffers.host_parts.data() + i * columns);
  }
  const auto bytes = static_cast<size_t>(count * columns) * sizeof(float);
  float* const queries = buffers.parts.data();
  float* const out = queries + count * columns;
  float* const host_out = buffers.host_parts.data() + count * columns;
  RETURN_IF_ERROR(context.compute().CopyIn(
      reinterpret_cast<std::byte*>(queries),
      {reinterpret_cast<const std::byte*>(buffers.host_parts.data()), bytes}));
  ASSIGN_OR_RETURN(const AttendSlot* const device_slots, buffers.job_uploads.Add(context, slots));
  RETURN_IF_ERROR(buffers.scratch.Reserve(
      context, DecodeScratchFloats(static_cast<int>(count), l.num_heads, l.head_dim, most)));
  RETURN_IF_ERROR(Launched(DecodeAttention({.layer = parts.kv->Layer(*jobs[0].sequence, layer),
                                            .slots = device_slots,
                                            .count = static_cast<int>(count),
                                            .most_entries = most,
                                            .query_heads = l.num_heads,
                                            .queries = queries,
                                            .query_stride = columns,
                                            .out = out,
                                            .out_stride = columns,
                                            .lse = buffers.lse.data(),
                                            .scratch = buffers.scratch.data()},
                                           context.stream()),
                           "attention to selected tokens"));
  const auto lse_bytes = static_cast<size_t>(count * l.num_heads) * sizeof(float);
  RETURN_IF_ERROR(context.compute().CopyOut({reinterpret_cast<std::byte*>(host_out), bytes},
                                            reinterpret_cast<const std::byte*>(out)));
  RETURN_IF_ERROR(
      context.compute().CopyOut({reinterpret_cast<std::byte*>(buffers.host_lse.data()), lse_bytes},
                                reinterpret_cast<const std::byte*>(buffers.lse.data())));
  RETURN_IF_ERROR(context.FinishCompute());
  buffers.job_uploads.Reset();
  for (int64_t i = 0; i < count; ++i) {
    const ReadJob& job = jobs[static_cast<size_t>(i)];
    std::copy_n(host_out + i * columns, columns, job.out);
    if (job.lse != nullptr) {
      std::copy_n(buffers.host_lse.data() + i * l.num_heads, l.num_heads, job.lse);
    }
  }
  return absl::OkStatus();
}

DeviceStep::DeviceStep(DeviceStepParts* parts, std::span<const DecodeSlot> batch)
    : config_(*parts->config),
      parts_(*parts),
      context_(*parts->context),
      kv_(*parts->kv),
      hidden_(config_.hidden_dim),
      buffers_(TakeBuffers(*parts)),
      slots_(batch.begin(), batch.end()),
      readers_(slots_.size()) {
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (slots_[s].read == nullptr) continue;
    readers_[s].emplace(&config_, &slots_[s]);
    reads_ = true;
  }
}

DeviceStep::~DeviceStep() {
  if (phase_ != Phase::kEnd) {
    // What is queued reads the buffers, which the next step gets. An error here is the next call's.
    (void)context_.FinishCompute();
    for (const DecodeSlot& slot : slots_) kv_.Forget(*slot.sequence, slot.position);
  }
  buffers_->uploads.Reset();
  parts_.spare.push_back(std::move(buffers_));
}

absl::StatusOr<StepRun::State> DeviceStep::Advance() {
  RETURN_IF_ERROR(error_);
  RETURN_IF_ERROR(context_.Enter());
  absl::StatusOr<State> state = Run();
  error_ = state.status();
  return state;
}

absl::StatusOr<StepRun::State> DeviceStep::Run() {
  while (phase_ != Phase::kEnd) {
    switch (phase_) {
      case Phase::kStart:
        RETURN_IF_ERROR(Start());
        phase_ = Phase::kLayer;
        break;
      case Phase::kLayer:
        if (layer_ == config_.num_layers()) {
          RETURN_IF_ERROR(Finish());
          phase_ = Phase::kEnd;
          break;
        }
        RETURN_IF_ERROR(Activate(layer_));
        if (active_.empty()) {
          ++layer_;
          break;
        }
        RETURN_IF_ERROR(BeginLayer());
        phase_ = Phase::kAttention;
        break;
      case Phase::kAttention: {
        ASSIGN_OR_RETURN(const bool complete, Attend());
        if (!complete) return State::kWaiting;
        RETURN_IF_ERROR(parts_.forward->FinishLayer(layer_, 0, static_cast<int64_t>(active_.size()),
                                                    buffers_->activations));
        ++layer_;
        phase_ = Phase::kLayer;
        break;
      }
      case Phase::kEnd:
        break;
    }
  }
  return State::kDone;
}

absl::Status DeviceStep::Annotated(const absl::Status& status, int slot) const {
  if (status.ok()) return status;
  return base::Annotate(status, fmt::format("decode slot {} layer {}", slot, layer_));
}

absl::Status DeviceStep::Start() {
  const auto count = static_cast<int64_t>(slots_.size());
  buffers_->uploads.Reset();
  RETURN_IF_ERROR(parts_.forward->Reserve(count, buffers_->activations));
  RETURN_IF_ERROR(buffers_->rows.Reserve(context_, count * hidden_));
  int64_t born = 0;
  for (const DecodeSlot& slot : slots_) born += slot.sequence->layout().TokenBytes();
  RETURN_IF_ERROR(buffers_->born.Reserve(context_, born));
  RETURN_IF_ERROR(buffers_->host_born.Reserve(context_, born));
  layer_ = config_.num_layers();
  for (int s = 0; s < count; ++s) {
    const DecodeSlot& slot = slots_[static_cast<size_t>(s)];
    layer_ = std::min(layer_, slot.layer_begin);
    if (slot.layer_begin == 0) {
      ASSIGN_OR_RETURN(const int32_t* const token,
                       buffers_->uploads.Add(context_, std::span<const int32_t>(&slot.token, 1)));
      RETURN_IF_ERROR(parts_.forward->Embed(token, 1, RowOf(s)));
    } else {
      ASSIGN_OR_RETURN(const float* const row,
                       buffers_->uploads.Add(context_, std::span<const float>(slot.hidden)));
      RETURN_IF_ERROR(parts_.forward->CopyRow(row, RowOf(s), hidden_));
    }
    // Before anything is asked for of the layers that follow.
    auto& reader = readers_[static_cast<size_t>(s)];
    if (!reader.has_value()) continue;
    RETURN_IF_ERROR(Annotated(reader->Predict(slot.layer_begin, {}), s));
  }
  return absl::OkStatus();
}

absl::Status DeviceStep::Activate(int layer) {
  std::vector<int> next;
  for (int s = 0; s < static_cast<int>(slots_.size()); ++s) {
    const DecodeSlot& slot = slots_[static_cast<size_t>(s)];
    if (slot.layer_begin <= layer && layer < LayerEnd(slot, config_.num_layers())) {
      next.push_back(s);
    }
  }
  if (next == active_) return absl::OkStatus();
  float* const hidden = buffers_->activations.hidden.data();
  for (size_t i = 0; i < active_.size(); ++i) {
    RETURN_IF_ERROR(parts_.forward->CopyRow(hidden + static_cast<int64_t>(i) * hidden_,
                                            RowOf(active_[i]), hidden_));
  }
  std::vector<int32_t> positions;
  for (size_t i = 0; i < next.size(); ++i) {
    RETURN_IF_ERROR(parts_.forward->CopyRow(RowOf(next[i]),
                                            hidden + static_cast<int64_t>(i) * hidden_, hidden_));
    positions.push_back(static_cast<int32_t>(slots_[static_cast<size_t>(next[i])].position));
  }
  active_ = std::move(next);
  mapped_.clear();
  if (active_.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int32_t* const device_positions,
                   buffers_->uploads.Add(context_, positions));
  return parts_.forward->FillRope(device_positions, static_cast<int64_t>(active_.size()),
                                  buffers_->activations);
}

absl::Status DeviceStep::BeginLayer() {
  const model::LayerConfig& l = config_.layers[static_cast<size_t>(layer_)];
  DeviceActivations& a = buffers_->activations;
  const auto count = static_cast<int64_t>(active_.size());
  if (reads_) RETURN_IF_ERROR(LookAhead());
  std::vector<int32_t> positions;
  for (const int s : active_) {
    positions.push_back(static_cast<int32_t>(slots_[static_cast<size_t>(s)].position));
  }
  // Layer after layer the pages are the same ones, unless others took some of them meanwhile.
  if (mapped_.empty() || kv_.evictions() != mapped_at_) {
    kv_.Begin();
    mapped_.clear();
    tables_.clear();
    for (const int s : active_) {
      const DecodeSlot& slot = slots_[static_cast<size_t>(s)];
      ASSIGN_OR_RETURN(auto pages, kv_.Map(*slot.sequence, slot.position + 1));
      mapped_.push_back(std::move(pages));
    }
    mapped_at_ = kv_.evictions();
    for (const auto& pages : mapped_) {
      ASSIGN_OR_RETURN(const int32_t* const table, buffers_->uploads.Add(context_, pages));
      tables_.push_back(table);
    }
  }
  ASSIGN_OR_RETURN(const int32_t* const device_positions,
                   buffers_->uploads.Add(context_, positions));
  ASSIGN_OR_RETURN(const int32_t* const* const device_tables,
                   buffers_->uploads.Add(context_, tables_));
  RETURN_IF_ERROR(parts_.forward->ProjectQkv(layer_, count, a));
  const kv::KvSequence& any = *slots_[static_cast<size_t>(active_[0])].sequence;
  RETURN_IF_ERROR(Launched(Rope({.x = a.qkv.data(),
                                 .stride = QkvColumns(l),
                                 .rows = count,
                                 .query_heads = l.num_heads,
                                 .kv_heads = l.num_kv_heads,
                                 .head_dim = l.head_dim,
                                 .cosines = a.cosines.data(),
                                 .sines = a.sines.data(),
                                 .layer = kv_.Layer(any, layer_),
                                 .positions = device_positions,
                                 .row_pages = device_tables},
                                context_.stream()),
                           "RoPE"));
  for (size_t i = 0; i < active_.size(); ++i) {
    const int64_t position = slots_[static_cast<size_t>(active_[i])].position;
    kv_.Written(mapped_[i], layer_, position, position + 1);
  }
  RETURN_IF_ERROR(QueueBorn());

  std::vector<int> whole;
  jobs_.clear();
  waiting_.clear();
  read_rows_.clear();
  const bool some_read = std::any_of(active_.begin(), active_.end(), [&](int s) {
    return readers_[static_cast<size_t>(s)].has_value();
  });
  if (some_read) {
    // Readers decide by the queries, and by the keys of all tokens up to this one.
    const auto bytes = static_cast<size_t>(count * QkvColumns(l)) * sizeof(float);
    RETURN_IF_ERROR(buffers_->host_qkv.Reserve(context_, count * QkvColumns(l)));
    RETURN_IF_ERROR(
        context_.compute().CopyOut({reinterpret_cast<std::byte*>(buffers_->host_qkv.data()), bytes},
                                   reinterpret_cast<const std::byte*>(a.qkv.data())));
    RETURN_IF_ERROR(context_.FinishCompute());
    KeepBorn();
    attended_.assign(static_cast<size_t>(count * QColumns(l)), 0.0f);
  }
  for (int i = 0; i < static_cast<int>(count); ++i) {
    const int s = active_[static_cast<size_t>(i)];
    std::optional<SlotReader>& reader = readers_[static_cast<size_t>(s)];
    if (reader.has_value()) {
      const float* const q = buffers_->host_qkv.data() + i * QkvColumns(l);
      const std::span<const float> queries(q, static_cast<size_t>(QColumns(l)));
      const absl::StatusOr<bool> all =
          reader->Begin(layer_, queries, attended_.data() + i * QColumns(l), jobs_);
      RETURN_IF_ERROR(Annotated(all.status(), s));
      waiting_.push_back(s);
      if (!*all) {
        read_rows_.push_back(i);
        continue;
      }
    }
    whole.push_back(i);
  }
  return whole.empty() ? absl::OkStatus() : AttendWhole(whole);
}

absl::StatusOr<AttendSlot*> DeviceStep::WholeSlots(std::span<const int> rows) {
  const model::LayerConfig& l = config_.layers[static_cast<size_t>(layer_)];
  std::vector<AttendSlot> slots;
  for (const int i : rows) {
    const DecodeSlot& slot = slots_[static_cast<size_t>(active_[static_cast<size_t>(i)])];
    slots.push_back({.pages = tables_[static_cast<size_t>(i)],
                     .row = i,
                     .begin = VisibleBegin(l, slot.position),
                     .end = slot.position + 1});
  }
  return buffers_->uploads.Add(context_, slots);
}

absl::Status DeviceStep::AttendWhole(std::span<const int> rows) {
  const model::LayerConfig& l = config_.layers[static_cast<size_t>(layer_)];
  DeviceActivations& a = buffers_->activations;
  int64_t most = 0;
  for (const int i : rows) {
    const DecodeSlot& slot = slots_[static_cast<size_t>(active_[static_cast<size_t>(i)])];
    const int64_t begin = VisibleBegin(l, slot.position);
    most = std::max(most, slot.position + 1 - begin);
    RETURN_IF_ERROR(
        kv_.Bring(*slot.sequence, mapped_[static_cast<size_t>(i)], layer_, begin, slot.position));
  }
  RETURN_IF_ERROR(kv_.Flush());
  ASSIGN_OR_RETURN(const AttendSlot* const slots, WholeSlots(rows));
  const int count = static_cast<int>(rows.size());
  RETURN_IF_ERROR(buffers_->scratch.Reserve(
      context_, DecodeScratchFloats(count, l.num_heads, l.head_dim, most)));
  const kv::KvSequence& any = *slots_[static_cast<size_t>(active_[0])].sequence;
  return Launched(DecodeAttention({.layer = kv_.Layer(any, layer_),
                                   .slots = slots,
                                   .count = count,
                                   .most_entries = most,
                                   .query_heads = l.num_heads,
                                   .queries = a.qkv.data(),
                                   .query_stride = QkvColumns(l),
                                   .out = a.attended.data(),
                                   .out_stride = QColumns(l),
                                   .scratch = buffers_->scratch.data()},
                                  context_.stream()),
                  "decode attention");
}

absl::Status DeviceStep::LookAhead() {
  const int next = layer_ + 1;
  const auto predicts = [&](int s) {
    const std::optional<SlotReader>& reader = readers_[static_cast<size_t>(s)];
    return reader.has_value() && reader->PredictsFrom(next);
  };
  int64_t columns = 0;
  if (std::any_of(active_.begin(), active_.end(), predicts)) {
    columns = QColumns(config_.layers[static_cast<size_t>(next)]);
    const auto count = static_cast<int64_t>(active_.size());
    RETURN_IF_ERROR(buffers_->predicted.Reserve(context_, count * columns));
    RETURN_IF_ERROR(buffers_->host_rows.Reserve(context_, count * columns));
    RETURN_IF_ERROR(parts_.forward->PredictQueries(next, count, buffers_->activations,
                                                   buffers_->predicted.data()));
    RETURN_IF_ERROR(
        context_.compute().CopyOut({reinterpret_cast<std::byte*>(buffers_->host_rows.data()),
                                    static_cast<size_t>(count * columns) * sizeof(float)},
                                   reinterpret_cast<const std::byte*>(buffers_->predicted.data())));
    RETURN_IF_ERROR(context_.FinishCompute());
  }
  for (size_t i = 0; i < active_.size(); ++i) {
    const int s = active_[i];
    std::optional<SlotReader>& reader = readers_[static_cast<size_t>(s)];
    if (!reader.has_value()) continue;
    std::span<const float> queries;
    if (predicts(s)) {
      queries = {buffers_->host_rows.data() + static_cast<int64_t>(i) * columns,
                 static_cast<size_t>(columns)};
    }
    RETURN_IF_ERROR(Annotated(reader->Predict(next, queries), s));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> DeviceStep::Attend() {
  absl::Status failed;
  std::erase_if(waiting_, [&](int s) {
    if (!failed.ok()) return false;
    const absl::StatusOr<bool> here = readers_[static_cast<size_t>(s)]->Arrived();
    failed = Annotated(here.status(), s);
    return here.ok() && *here;
  });
  RETURN_IF_ERROR(failed);
  if (!waiting_.empty()) return false;
  if (read_rows_.empty()) return true;
  RETURN_IF_ERROR(RunJobs(parts_, jobs_, *buffers_));
  jobs_.clear();
  const int64_t columns = QColumns(config_.layers[static_cast<size_t>(layer_)]);
  for (const int i : read_rows_) {
    readers_[static_cast<size_t>(active_[static_cast<size_t>(i)])]->Merge();
    const std::span<const float> row = std::span<const float>(attended_).subspan(
        static_cast<size_t>(i * columns), static_cast<size_t>(columns));
    ASSIGN_OR_RETURN(const float* const on_device, buffers_->uploads.Add(context_, row));
    RETURN_IF_ERROR(parts_.forward->CopyRow(
        on_device, buffers_->activations.attended.data() + i * columns, columns));
  }
  return true;
}

absl::Status DeviceStep::QueueBorn() {
  Born born{.layer = layer_, .offset = born_bytes_, .slots = active_};
  const auto count = static_cast<int64_t>(active_.size());
  if (!kv_.in_host_memory()) {
    // The rows' pages as those of one sequence: row i's token is at its place in page i.
    const kv::KvSequence& any = *slots_[static_cast<size_t>(active_[0])].sequence;
    const int64_t token_bytes = any.layout().TokenBytes(layer_);
    std::vector<int32_t> pages;
    std::vector<StagedRange> ranges;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t position =
          slots_[static_cast<size_t>(active_[static_cast<size_t>(i)])].position;
      pages.push_back(mapped_[static_cast<size_t>(i)][static_cast<size_t>(position / kPage)]);
      const auto at = static_cast<int32_t>(i * kPage + position % kPage);
      ranges.push_back({.begin = at, .end = at + 1, .offset = i * token_bytes});
    }
    ASSIGN_OR_RETURN(const int32_t* const device_pages, buffers_->uploads.Add(context_, pages));
    ASSIGN_OR_RETURN(const StagedRange* const device_ranges,
                     buffers_->uploads.Add(context_, ranges));
    PagedLayer layer = kv_.Layer(any, layer_);
    layer.pages = device_pages;
    std::byte* const staging = buffers_->born.data() + born.offset;
    RETURN_IF_ERROR(Launched(CopyRanges({.layer = layer,
                                         .ranges = device_ranges,
                                         .count = static_cast<int>(count),
                                         .most_tokens = 1,
                                         .staging = staging,
                                         .direction = Direction::kGather},
                                        context_.stream()),
                             "gathering new KV"));
    const auto bytes = static_cast<size_t>(count * token_bytes);
    RETURN_IF_ERROR(
        context_.compute().CopyOut({buffers_->host_born.data() + born.offset, bytes}, staging));
    born_bytes_ += count * token_bytes;
  }
  born_.push_back(std::move(born));
  return absl::OkStatus();
}

void DeviceStep::KeepBorn() {
  for (const Born& born : born_) {
    const std::byte* from = buffers_->host_born.data() + born.offset;
    for (const int s : born.slots) {
      const DecodeSlot& slot = slots_[static_cast<size_t>(s)];
      const kv::KvLayout& layout = slot.sequence->layout();
      if (!kv_.in_host_memory()) {
        std::byte* const page = slot.sequence->Page(born.layer, slot.position / kPage);
        const int token = static_cast<int>(slot.position % kPage);
        const int heads = layout.layers[static_cast<size_t>(born.layer)].kv_heads;
        const auto row = static_cast<size_t>(layout.RowBytes(born.layer));
        for (int head = 0; head < heads; ++head, from += row) {
          std::memcpy(page + layout.KOffset(born.layer, head, token), from, row);
        }
        for (int head = 0; head < heads; ++head, from += row) {
          std::memcpy(page + layout.VOffset(born.layer, head, token), from, row);
        }
      }
      slot.sequence->MarkLocal(born.layer, slot.position, slot.position + 1);
    }
  }
  born_.clear();
}

absl::Status DeviceStep::Finish() {
  RETURN_IF_ERROR(Activate(config_.num_layers()));  // none: all hidden states go to their rows
  DeviceActivations& a = buffers_->activations;
  const int64_t vocab = config_.vocab_size;
  std::vector<int> hidden, wanted;
  for (int s = 0; s < static_cast<int>(slots_.size()); ++s) {
    const DecodeSlot& slot = slots_[static_cast<size_t>(s)];
    if (!slot.hidden.empty()) hidden.push_back(s);
    if (slot.logits.empty() || LayerEnd(slot, config_.num_layers()) < config_.num_layers()) {
      continue;
    }
    RETURN_IF_ERROR(parts_.forward->CopyRow(
        RowOf(s), a.hidden.data() + static_cast<int64_t>(wanted.size()) * hidden_, hidden_));
    wanted.push_back(s);
  }
  const auto count = static_cast<int64_t>(wanted.size());
  const auto hidden_count = static_cast<int64_t>(hidden.size());
  RETURN_IF_ERROR(buffers_->host_rows.Reserve(context_, count * vocab + hidden_count * hidden_));
  float* const host_logits = buffers_->host_rows.data();
  float* const host_hidden = host_logits + count * vocab;
  if (count > 0) {
    RETURN_IF_ERROR(buffers_->logits.Reserve(context_, count * vocab));
    RETURN_IF_ERROR(parts_.forward->Logits(0, count, buffers_->logits.data(), a));
    RETURN_IF_ERROR(
        context_.compute().CopyOut({reinterpret_cast<std::byte*>(host_logits),
                                    static_cast<size_t>(count * vocab) * sizeof(float)},
                                   reinterpret_cast<const std::byte*>(buffers_->logits.data())));
  }
  for (int64_t i = 0; i < hidden_count; ++i) {
    RETURN_IF_ERROR(context_.compute().CopyOut(
        {reinterpret_cast<std::byte*>(host_hidden + i * hidden_),
         static_cast<size_t>(hidden_) * sizeof(float)},
        reinterpret_cast<const std::byte*>(RowOf(hidden[static_cast<size_t>(i)]))));
  }
  RETURN_IF_ERROR(context_.FinishCompute());
  KeepBorn();
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(host_logits + i * vocab, vocab,
                slots_[static_cast<size_t>(wanted[static_cast<size_t>(i)])].logits.data());
  }
  for (int64_t i = 0; i < hidden_count; ++i) {
    std::copy_n(host_hidden + i * hidden_, hidden_,
                slots_[static_cast<size_t>(hidden[static_cast<size_t>(i)])].hidden.data());
  }
  return absl::OkStatus();
}

}  // namespace smartgen::executor::cuda
