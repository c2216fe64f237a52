#include "tools/profile/selection_run.h"

#include <algorithm>
#include <utility>

#include "common/selector/parameters.h"

namespace smartgen::tools::profile {
namespace {

// Queries of the first chunk that channels are chosen from, as on the prefill side.
constexpr int64_t kSampledQueries = 256;
// So wide that the budget alone decides how many tokens are selected.
constexpr float kNoThreshold = 1e6f;
// What a decode step costs, in tokens of a prefill; for the progress alone.
constexpr double kStepCost = 20;

}  // namespace

std::vector<int> QueryHeads(const model::ModelConfig& config) {
  std::vector<int> heads;
  for (const model::LayerConfig& layer : config.layers) heads.push_back(layer.num_heads);
  return heads;
}

absl::StatusOr<std::unique_ptr<SelectionRun>> SelectionRun::Create(const model::Model& model,
                                                                   const Options& options) {
  if (options.steps < 1 || options.steps > options.executor.max_prefill_tokens) {
    return base::InvalidArgument("steps: want 1 to {}, got {}", options.executor.max_prefill_tokens,
                                 options.steps);
  }
  const int64_t tokens = options.max_prompt_tokens + options.steps;
  if (tokens > model.config().context_length) {
    return base::InvalidArgument(
        "a prompt of {} tokens and {} steps are more than the model's context of {}",
        options.max_prompt_tokens, options.steps, model.config().context_length);
  }
  auto run = std::unique_ptr<SelectionRun>(new SelectionRun(options));
  ASSIGN_OR_RETURN(run->executor_, executor::CreateCpuExecutor(model, options.executor));
  const kv::KvLayout layout = run->executor_->Layout(tokens);
  selector::Options chosen = options.selector;
  run->exact_ = chosen.kind == selector::Kind::kDense;
  if (run->exact_) {
    // All channels as they are and no threshold: the scores are exact.
    chosen.kind = selector::Kind::kInfiniGen;
    chosen.channel_share = 1;
    chosen.alpha = kNoThreshold;
  }
  selector::Parameters parameters;
  if (!options.parameters.empty() && !run->exact_) {
    ASSIGN_OR_RETURN(parameters, selector::LoadParameters(options.parameters, model.fingerprint(),
                                                          layout, chosen));
  }
  ASSIGN_OR_RETURN(run->selector_, selector::KvSelector::Create(
                                       chosen, layout, QueryHeads(model.config()), parameters));
  kv::KvPool::Options pool;
  pool.bytes = kv::KvPool::PagesFor(tokens) * layout.PageBytesTotal();
  ASSIGN_OR_RETURN(run->pool_, kv::KvPool::Create(layout, pool));
  return run;
}

int64_t SelectionRun::QueryValues(int layer) const {
  const model::LayerConfig& l = executor_->config().layers[layer];
  return static_cast<int64_t>(l.num_heads) * l.head_dim;
}

absl::Status SelectionRun::Run(std::span<const executor::TokenId> ids,
                               const OnSelection& on_selection, const OnProgress& on_progress) {
  const auto total = static_cast<int64_t>(ids.size());
  const int64_t prompt = total - options_.steps;
  if (prompt < 1 || prompt > options_.max_prompt_tokens) {
    return base::InvalidArgument("want a prompt of 1 to {} tokens and {} more, got {} in all",
                                 options_.max_prompt_tokens, options_.steps, total);
  }
  const auto chooses = [&](int layer) { return !selector_->ExtentOf(layer, prompt + 1).dense; };
  bool any = false;
  for (int layer = 0; layer < layers(); ++layer) any = any || chooses(layer);
  if (!any) {
    return base::InvalidArgument(
        "with a prompt of {} tokens every layer reads everything: nothing is selected", prompt);
  }
  const double work = static_cast<double>(prompt) + kStepCost * options_.steps;
  double done = 0;
  const auto advance = [&](double units) {
    done += units;
    if (on_progress) on_progress(std::min(1.0, done / work));
  };
  State state(pool_.get(), &selector_->metadata(), total);
  RETURN_IF_ERROR(state.sequence.Reserve(total));
  RETURN_IF_ERROR(Prefill(state, ids.first(static_cast<size_t>(prompt)),
                          [&](int64_t tokens) { advance(static_cast<double>(tokens)); }));
  if (exact_) {
    RETURN_IF_ERROR(ExactSteps(state, ids, prompt, on_selection));
    advance(kStepCost * options_.steps);
    return absl::OkStatus();
  }
  for (int64_t position = prompt; position < total; ++position) {
    RETURN_IF_ERROR(Step(state, position, ids[static_cast<size_t>(position)], on_selection));
    advance(kStepCost);
  }
  return absl::OkStatus();
}

absl::Status SelectionRun::Prefill(State& state, std::span<const executor::TokenId> prompt,
                                   const std::function<void(int64_t tokens)>& done) {
  const auto total = static_cast<int64_t>(prompt.size());
  const int64_t most = options_.executor.max_prefill_tokens;
  for (int64_t start = 0; start < total; start += most) {
    executor::PrefillChunk chunk;
    chunk.sequence = &state.sequence;
    chunk.start = start;
    chunk.tokens = prompt.subspan(static_cast<size_t>(start),
                                  static_cast<size_t>(std::min(most, total - start)));
    const auto rows = static_cast<int64_t>(chunk.tokens.size());
    chunk.on_queries = [&](int layer, std::span<const float> queries, int64_t ld) {
      const bool needed =
          selector_->metadata().HeaderBytes(layer) > 0 && state.store.Header(layer).empty();
      if (!needed) return;
      const auto width = static_cast<size_t>(QueryValues(layer));
      const int64_t stride = std::max<int64_t>(1, rows / kSampledQueries);
      std::vector<float> sample;
      for (int64_t row = 0; row < rows; row += stride) {
        const auto values = queries.subspan(static_cast<size_t>(row * ld), width);
        sample.insert(sample.end(), values.begin(), values.end());
      }
      state.status.Update(selector_->ChooseChannels(layer, sample, state.store));
    };
    chunk.on_layer = [&](int layer, int64_t begin, int64_t end) {
      state.status.Update(selector_->Extend(layer, state.sequence, begin, end, state.store));
    };
    RETURN_IF_ERROR(executor_->Prefill(chunk));
    RETURN_IF_ERROR(state.status);
    done(rows);
  }
  return absl::OkStatus();
}

absl::Status SelectionRun::Step(State& state, int64_t position, executor::TokenId token,
                                const OnSelection& on_selection) {
  executor::SlotRead read;
  read.selector = selector_.get();
  read.metadata = &state.store;
  read.on_selection = [&](int layer, const selector::Selection& selection) {
    if (!selection.dense) on_selection(layer, selection);
  };
  // Takes the place of the logits: nobody asks what the model would say.
  std::vector<float> hidden(static_cast<size_t>(executor_->config().hidden_dim));
  const executor::DecodeSlot slot{.sequence = &state.sequence,
                                  .position = position,
                                  .token = token,
                                  .hidden = hidden,
                                  .read = &read};
  ASSIGN_OR_RETURN(const auto step, executor_->StartStep(std::span(&slot, 1)));
  ASSIGN_OR_RETURN(const executor::StepRun::State end, step->Advance());
  if (end == executor::StepRun::State::kDone) return absl::OkStatus();
  return base::Internal("a step at {} waits though all KV is here", position);
}

absl::Status SelectionRun::ExactSteps(State& state, std::span<const executor::TokenId> ids,
                                      int64_t prompt, const OnSelection& on_selection) {
  executor::PrefillChunk chunk;
  chunk.sequence = &state.sequence;
  chunk.start = prompt;
  chunk.tokens = ids.subspan(static_cast<size_t>(prompt));
  const auto rows = static_cast<int64_t>(chunk.tokens.size());
  std::vector<float> rows_of_layer;  // [rows][query values], until the layer's keys are there
  chunk.on_queries = [&](int layer, std::span<const float> queries, int64_t ld) {
    const auto width = static_cast<size_t>(QueryValues(layer));
    rows_of_layer.clear();
    for (int64_t row = 0; row < rows; ++row) {
      const auto values = queries.subspan(static_cast<size_t>(row * ld), width);
      rows_of_layer.insert(rows_of_layer.end(), values.begin(), values.end());
    }
  };
  selector::Selection selection;
  chunk.on_layer = [&](int layer, int64_t begin, int64_t end) {
    state.status.Update(selector_->Extend(layer, state.sequence, begin, end, state.store));
    const auto width = static_cast<size_t>(QueryValues(layer));
    for (int64_t row = 0; row < rows && state.status.ok(); ++row) {
      const auto queries =
          std::span<const float>(rows_of_layer).subspan(static_cast<size_t>(row) * width, width);
      state.status.Update(
          selector_->Select(layer, state.store, queries, prompt + row + 1, selection));
      if (state.status.ok() && !selection.dense) on_selection(layer, selection);
    }
  };
  RETURN_IF_ERROR(executor_->Prefill(chunk));
  return state.status;
}

}  // namespace smartgen::tools::profile
