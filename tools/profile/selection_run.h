// Which KV entries the decode steps after a prompt select: runs the model in this process, with all
// KV here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/executor/executor.h"
#include "common/kv/pool.h"
#include "common/model/model.h"
#include "common/selector/selector.h"

namespace smartgen::tools::profile {

// One thread.
class SelectionRun {
 public:
  struct Options {
    // kDense: full attention, and what counts as selected are the tokens of the greatest exact
    // scores q * k (summed over the query heads of a group), as many as the budget allows.
    selector::Options selector;
    std::string parameters;  // selector::LoadParameters; empty: none
    executor::ExecutorOptions executor;
    int64_t max_prompt_tokens = 0;
    int steps = 0;  // decode steps after each prompt, at least 1
  };
  // Called for every layer of every step in which the selector chose, not where it read everything.
  using OnSelection = std::function<void(int layer, const selector::Selection& selection)>;
  // Called often, with the share of the run that is done.
  using OnProgress = std::function<void(double share)>;

  // InvalidArgument for what does not fit the model (its context, the selector's options); what
  // LoadParameters says.
  static absl::StatusOr<std::unique_ptr<SelectionRun>> Create(const model::Model& model,
                                                              const Options& options);

  // `ids` are a prompt and `steps` tokens more, which the steps are given whatever the model would
  // have said (teacher forcing). InvalidArgument if there are fewer, or if the prompt is so short
  // that everything is read.
  absl::Status Run(std::span<const executor::TokenId> ids, const OnSelection& on_selection,
                   const OnProgress& on_progress = nullptr);

  int layers() const { return executor_->config().num_layers(); }
  const Options& options() const { return options_; }

 private:
  explicit SelectionRun(const Options& options) : options_(options) {}

  // One prompt's KV with its selection metadata.
  struct State {
    State(kv::KvPool* pool, const selector::MetadataLayout* metadata, int64_t tokens)
        : sequence(pool), store(metadata, tokens) {}
    kv::KvSequence sequence;
    selector::MetadataStore store;
    absl::Status status;  // the first error of a callback
  };

  absl::Status Prefill(State& state, std::span<const executor::TokenId> prompt,
                       const std::function<void(int64_t tokens)>& done);
  absl::Status Step(State& state, int64_t position, executor::TokenId token,
                    const OnSelection& on_selection);
  // Full attention over the tokens after the prompt in one chunk; each one's queries select.
  absl::Status ExactSteps(State& state, std::span<const executor::TokenId> ids, int64_t prompt,
                          const OnSelection& on_selection);
  int64_t QueryValues(int layer) const;

  const Options options_;
  bool exact_ = false;
  std::unique_ptr<executor::Executor> executor_;
  std::unique_ptr<kv::KvPool> pool_;
  std::unique_ptr<selector::KvSelector> selector_;
};

// Query heads of each layer, as selectors want them.
std::vector<int> QueryHeads(const model::ModelConfig& config);

}  // namespace smartgen::tools::profile
