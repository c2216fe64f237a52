// Steps that read selected or remote KV, on tiny models: what was where, and when it came, never
// shows in the result.
#include "tests/common/executor/late_remote.h"
#include "tests/common/executor/model/fixture.h"

namespace smartgen::executor {
namespace {

using selector::Kind;
using testing::Contains;
using testing::HasSubstr;

constexpr int64_t kPrompt = 150;
constexpr int kSteps = 4;

struct Param {
  const char* architecture;
  ComputeType compute;
  Kind kind;
};

// A sequence with its selection metadata.
struct Stream {
  std::unique_ptr<kv::KvSequence> sequence;
  std::unique_ptr<selector::MetadataStore> metadata;
};

class SparseRead : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    auto model =
        model::Model::Open(std::string(SMARTGEN_TEST_DATA) + "/arch_" + GetParam().architecture);
    ASSERT_TRUE(model.ok()) << model.status();
    b_ = Bench::Make(**model, {.compute = GetParam().compute, .threads = 2}, 256);
    ASSERT_NE(b_.executor, nullptr);
    for (int i = 0; i < kPrompt + 50; ++i) {
      tokens_.push_back(static_cast<TokenId>((i * 37 + i * i % 11) % 256));
    }
    MakeSelector(0.2, 1);
  }

  void MakeSelector(double budget, int dense_layers) {
    std::vector<int> heads;
    for (const auto& l : executor().config().layers) heads.push_back(l.num_heads);
    auto made = selector::KvSelector::Create({.kind = GetParam().kind,
                                              .budget_share = budget,
                                              .dense_tokens = 8,
                                              .dense_layers = dense_layers,
                                              .recent_tokens = 4},
                                             executor().Layout(256), heads);
    ASSERT_TRUE(made.ok()) << made.status();
    selector_ = *std::move(made);
  }

  Executor& executor() { return *b_.executor; }

  // The prompt, computed here, with metadata.
  Stream Prefilled() {
    Stream s{std::make_unique<kv::KvSequence>(b_.pool.get()),
             std::make_unique<selector::MetadataStore>(&selector_->metadata(), 256)};
    EXPECT_TRUE(s.sequence->Reserve(256).ok());
    PrefillChunk chunk{.sequence = s.sequence.get(), .tokens = {tokens_.data(), kPrompt}};
    chunk.on_queries = [&](int layer, std::span<const float> queries, int64_t ld) {
      const model::LayerConfig& l = executor().config().layers[layer];
      std::vector<float> rows;
      for (int64_t i = 0; i < kPrompt; ++i) {
        const auto row = queries.subspan(i * ld, l.num_heads * l.head_dim);
        rows.insert(rows.end(), row.begin(), row.end());
      }
      EXPECT_TRUE(selector_->ChooseChannels(layer, rows, *s.metadata).ok());
    };
    chunk.on_layer = [&](int layer, int64_t begin, int64_t end) {
      EXPECT_TRUE(selector_->Extend(layer, *s.sequence, begin, end, *s.metadata).ok());
    };
    EXPECT_EQ(executor().Prefill(chunk), absl::OkStatus());
    return s;
  }
  // The same prompt with a share of the entries here.
  Stream Partial(Stream& full, double share, uint32_t seed) {
    Stream s{std::make_unique<kv::KvSequence>(b_.pool.get()),
             std::make_unique<selector::MetadataStore>(&selector_->metadata(), 256)};
    EXPECT_TRUE(s.sequence->Reserve(256).ok());
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> uniform(0, 1);
    CopyPart(*full.sequence, *s.sequence, kPrompt,
             [&](int, int, int64_t) { return uniform(random) < share; });
    for (int layer = 0; layer < executor().config().num_layers(); ++layer) {
      std::vector<std::byte> bytes;
      EXPECT_TRUE(s.metadata->PutHeader(layer, full.metadata->Header(layer)).ok());
      EXPECT_TRUE(full.metadata->Export(layer, 0, kPrompt, bytes).ok());
      EXPECT_TRUE(s.metadata->Put(layer, 0, kPrompt, bytes).ok());
    }
    return s;
  }

  DecodeSlot SlotOf(Stream& s, int64_t position, std::vector<float>& logits, SlotRead* read) {
    logits.assign(b_.vocab(), -1.0f);
    return {.sequence = s.sequence.get(),
            .position = position,
            .token = tokens_[position],
            .logits = logits,
            .read = read};
  }
  // Advances until done; how often it waited.
  int Finish(StepRun& run) {
    for (int waits = 0; waits < 1000; ++waits) {
      const auto state = run.Advance();
      if (!state.ok()) {
        ADD_FAILURE() << state.status();
        return -1;
      }
      if (*state == StepRun::State::kDone) return waits;
    }
    ADD_FAILURE() << "the step never ends";
    return -1;
  }
  std::vector<float> Step(Stream& s, int64_t position, SlotRead* read, int* waits = nullptr) {
    std::vector<float> logits;
    const DecodeSlot slot = SlotOf(s, position, logits, read);
    auto run = executor().StartStep({&slot, 1});
    EXPECT_TRUE(run.ok()) << run.status();
    if (!run.ok()) return logits;
    const int waited = Finish(**run);
    if (waits != nullptr) *waits += waited;
    return logits;
  }

  Bench b_;
  std::vector<TokenId> tokens_;
  std::unique_ptr<selector::KvSelector> selector_;
};

TEST_P(SparseRead, WhereAndWhenEntriesAreDoesNotShowInTheBits) {
  for (const int dense_layers : {0, 1}) {
    MakeSelector(0.2, dense_layers);
    for (const double share : {0.0, 0.6, 0.97}) {
      for (const bool prefetch : {false, true}) {
        Stream full = Prefilled();
        Stream part = Partial(full, share, 11);
        LateRemote remote(&executor(), full.sequence.get(), part.sequence.get(), 5);
        int waits = 0;
        for (int64_t at = kPrompt; at < kPrompt + kSteps; ++at) {
          SlotRead local{.selector = selector_.get(), .metadata = full.metadata.get()};
          SlotRead late{.selector = selector_.get(),
                        .metadata = part.metadata.get(),
                        .remote = &remote,
                        .prefetch = prefetch};
          const std::vector<float> want = Step(full, at, &local);
          ASSERT_EQ(Step(part, at, &late, &waits), want)
              << "token " << at << " share " << share << " prefetch " << prefetch;
          EXPECT_EQ(late.selected_entries, local.selected_entries);
          EXPECT_EQ(local.remote_entries, 0);
        }
        // Elsewhere so few may be missing that one answer brings them all.
        if (share == 0) {
          EXPECT_GT(waits, 0);
        }
        EXPECT_EQ(remote.needless, 0);
      }
    }
  }
}

TEST_P(SparseRead, ABudgetOfAllIsFullAttention) {
  MakeSelector(1.0, 1);
  Stream full = Prefilled(), selected = Prefilled();
  Stream part = Partial(selected, 0.5, 3);
  LateRemote remote(&executor(), full.sequence.get(), part.sequence.get(), 6);
  for (int64_t at = kPrompt; at < kPrompt + kSteps; ++at) {
    std::vector<float> want;
    const DecodeSlot slot = SlotOf(full, at, want, nullptr);
    ASSERT_EQ(executor().Decode({&slot, 1}), absl::OkStatus());
    SlotRead all{.selector = selector_.get(), .metadata = selected.metadata.get()};
    EXPECT_EQ(Step(selected, at, &all), want);
    SlotRead late{.selector = selector_.get(), .metadata = part.metadata.get(), .remote = &remote};
    EXPECT_EQ(Step(part, at, &late), want);
  }
}

TEST_P(SparseRead, AsksForExactlyTheSelectedEntriesThatAreNotHere) {
  Stream full = Prefilled();
  Stream part = Partial(full, 0.5, 21);
  LateRemote remote(&executor(), full.sequence.get(), part.sequence.get(), 7);
  std::map<int, std::set<LateRemote::Entry>> want;
  int64_t entries = 0, missing = 0;
  SlotRead read{.selector = selector_.get(), .metadata = part.metadata.get(), .remote = &remote};
  // What was here before the step; all else is missing.
  std::map<int, std::set<LateRemote::Entry>> here;
  for (int layer = 0; layer < executor().config().num_layers(); ++layer) {
    for (int head = 0; head < executor().config().layers[layer].num_kv_heads; ++head) {
      for (int64_t t = 0; t < kPrompt; ++t) {
        if (part.sequence->HeadLocal(layer, head, t)) here[layer].insert({head, t});
      }
    }
  }
  std::vector<int> layers;
  read.on_selection = [&](int layer, const selector::Selection& selection) {
    layers.push_back(layer);
    for (int head = 0; head < selection.kv_heads; ++head) {
      for (int64_t i = 0; i < selection.k; ++i) {
        const int64_t token = selection.dense ? selection.first + i : selection.Row(head)[i];
        ++entries;
        if (token == kPrompt || here[layer].contains({head, token})) continue;
        want[layer].insert({head, token});
        ++missing;
      }
    }
  };
  Step(part, kPrompt, &read);
  EXPECT_EQ(remote.asked, want);
  EXPECT_EQ(read.selected_entries, entries);
  EXPECT_EQ(read.remote_entries, missing);
  EXPECT_EQ(layers, (std::vector<int>{0, 1}));
  EXPECT_GT(missing, 0);
}

TEST_P(SparseRead, PrefetchAsksForTheNextLayerWhileThisOneWaits) {
  Stream full = Prefilled();
  Stream part = Partial(full, 0.3, 8);
  LateRemote remote(&executor(), full.sequence.get(), part.sequence.get(), 9);
  SlotRead read{.selector = selector_.get(),
                .metadata = part.metadata.get(),
                .remote = &remote,
                .prefetch = true};
  std::vector<float> logits;
  const DecodeSlot slot = SlotOf(part, kPrompt, logits, &read);
  auto run = executor().StartStep({&slot, 1});
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_EQ(*(*run)->Advance(), StepRun::State::kWaiting);
  EXPECT_THAT(remote.calls, Contains("fetched? 0"));
  EXPECT_THAT(remote.calls, testing::Not(Contains("fetched? 1")));
  // Selectors that need the layer's own queries cannot tell before.
  const bool ahead = selector_->predicts() || GetParam().kind == Kind::kDense;
  EXPECT_EQ(std::count(remote.calls.begin(), remote.calls.end(), "fetch 1"), ahead ? 1 : 0);
  Finish(**run);
}

// A slot that begins at layer 1 has no layer before it, so its own queries count: with the
// embedding as its input they are what layer 0's input predicts of layer 1.
TEST_P(SparseRead, APredictedSelectionIsMadeFromTheInputOfTheLayerBefore) {
  if (!selector_->predicts()) GTEST_SKIP() << "predicts nothing";
  Stream whole = Prefilled(), second = Prefilled();
  std::vector<int32_t> predicted, want;
  SlotRead read{.selector = selector_.get(), .metadata = whole.metadata.get()};
  read.on_selection = [&](int layer, const selector::Selection& s) {
    if (layer == 1) predicted = s.index;
  };
  Step(whole, kPrompt, &read);
  auto model =
      model::Model::Open(std::string(SMARTGEN_TEST_DATA) + "/arch_" + GetParam().architecture);
  ASSERT_TRUE(model.ok());
  const auto table = (*model)->Find(model::Weight::kEmbedding);
  ASSERT_TRUE(table.has_value());
  std::vector<float> embedding(table->cols), logits(b_.vocab());
  model::Dequantize(*table, tokens_[kPrompt], tokens_[kPrompt] + 1, embedding);
  SlotRead own{.selector = selector_.get(), .metadata = second.metadata.get()};
  own.on_selection = [&](int, const selector::Selection& s) { want = s.index; };
  const DecodeSlot slot{.sequence = second.sequence.get(),
                        .position = kPrompt,
                        .token = tokens_[kPrompt],
                        .logits = logits,
                        .layer_begin = 1,
                        .hidden = embedding,
                        .read = &own};
  auto run = executor().StartStep({&slot, 1});
  ASSERT_TRUE(run.ok()) << run.status();
  Finish(**run);
  EXPECT_FALSE(want.empty());
  EXPECT_EQ(predicted, want);
}

TEST_P(SparseRead, RunsThatAreOpenTogetherDoNotDisturbEachOther) {
  constexpr int kRuns = 3;
  std::vector<Stream> full, part;
  std::vector<std::unique_ptr<LateRemote>> remotes;
  std::vector<SlotRead> local(kRuns), late(kRuns);
  std::vector<std::vector<float>> want(kRuns), got(kRuns);
  std::vector<std::unique_ptr<StepRun>> runs;
  for (int i = 0; i < kRuns; ++i) {
    full.push_back(Prefilled());
    part.push_back(Partial(full[i], 0.2 + 0.3 * i, 30 + i));
    remotes.push_back(std::make_unique<LateRemote>(&executor(), full[i].sequence.get(),
                                                   part[i].sequence.get(), 40 + i));
    local[i] = {.selector = selector_.get(), .metadata = full[i].metadata.get()};
    late[i] = {.selector = selector_.get(),
               .metadata = part[i].metadata.get(),
               .remote = remotes[i].get(),
               .prefetch = i == 1};
    want[i] = Step(full[i], kPrompt, &local[i]);
    const DecodeSlot slot = SlotOf(part[i], kPrompt, got[i], &late[i]);
    runs.push_back(*executor().StartStep({&slot, 1}));
  }
  std::vector<bool> done(kRuns);
  for (int turn = 0; turn < 300; ++turn) {
    const int i = turn % kRuns;
    if (done[i]) continue;
    const auto state = runs[i]->Advance();
    ASSERT_TRUE(state.ok()) << state.status();
    done[i] = *state == StepRun::State::kDone;
  }
  EXPECT_EQ(got, want);
}

TEST_P(SparseRead, SlotsThatReadAndSlotsThatDoNotShareABatch) {
  Stream full = Prefilled(), plain = Prefilled(), plain_alone = Prefilled();
  Stream part = Partial(full, 0.4, 50);
  LateRemote remote(&executor(), full.sequence.get(), part.sequence.get(), 51);
  SlotRead local{.selector = selector_.get(), .metadata = full.metadata.get()};
  SlotRead late{.selector = selector_.get(),
                .metadata = part.metadata.get(),
                .remote = &remote,
                .prefetch = true};
  std::vector<float> want_plain, got_plain, got_part;
  const std::vector<float> want_part = Step(full, kPrompt, &local);
  const DecodeSlot alone = SlotOf(plain_alone, kPrompt, want_plain, nullptr);
  ASSERT_EQ(executor().Decode({&alone, 1}), absl::OkStatus());
  const std::vector<DecodeSlot> batch = {SlotOf(plain, kPrompt, got_plain, nullptr),
                                         SlotOf(part, kPrompt, got_part, &late)};
  auto run = executor().StartStep(batch);
  ASSERT_TRUE(run.ok()) << run.status();
  Finish(**run);
  EXPECT_EQ(got_plain, want_plain);
  EXPECT_EQ(got_part, want_part);
}

TEST_P(SparseRead, AnErrorOfTheRemoteEndsTheStepForGood) {
  for (const bool later : {false, true}) {
    Stream full = Prefilled();
    Stream part = Partial(full, 0.1, 60);
    LateRemote remote(&executor(), full.sequence.get(), part.sequence.get(), 61);
    (later ? remote.fail_later : remote.fail) = base::Unavailable("the other side is gone");
    SlotRead read{.selector = selector_.get(), .metadata = part.metadata.get(), .remote = &remote};
    std::vector<float> logits;
    const DecodeSlot slot = SlotOf(part, kPrompt, logits, &read);
    auto run = executor().StartStep({&slot, 1});
    ASSERT_TRUE(run.ok()) << run.status();
    for (int again = 0; again < 2; ++again) {
      const absl::Status status = (*run)->Advance().status();
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(std::string(base::MessageOf(status)), HasSubstr("slot 0 layer 0"));
    }
    // The same token runs again when the other side is back.
    run->reset();
    remote.fail = remote.fail_later = absl::OkStatus();
    SlotRead local{.selector = selector_.get(), .metadata = full.metadata.get()};
    EXPECT_EQ(Step(part, kPrompt, &read), Step(full, kPrompt, &local));
  }
}

TEST_P(SparseRead, ReadsThatDoNotFitAreRefusedByName) {
  Stream s = Prefilled();
  LateRemote remote(&executor(), s.sequence.get(), s.sequence.get(), 1);
  std::vector<float> logits;
  const auto refused = [&](const char* field, const SlotRead& bad,
                           absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    SlotRead read = bad;
    const DecodeSlot slot = SlotOf(s, kPrompt, logits, &read);
    const auto run = executor().StartStep({&slot, 1});
    EXPECT_EQ(run.status().code(), code) << run.status();
    EXPECT_THAT(std::string(base::MessageOf(run.status())), HasSubstr(field));
  };
  refused("read.metadata", {.selector = selector_.get()});
  selector::MetadataStore small(&selector_->metadata(), kPrompt);
  refused("read.metadata", {.selector = selector_.get(), .metadata = &small});
  const selector::MetadataLayout copy = selector_->metadata();
  selector::MetadataStore other(&copy, 256);
  refused("read.metadata", {.selector = selector_.get(), .metadata = &other});
  refused("read.ship_end", {.remote = &remote, .ship_end = -1});
  refused("read.ship_end", {.remote = &remote, .ship_end = kPrompt + 1});
  refused("read.ship_end", {.ship_end = 4});
  refused("read.ship_end", {.selector = selector_.get(),
                            .metadata = s.metadata.get(),
                            .remote = &remote,
                            .ship_end = 4});
  if (GetParam().kind != Kind::kDense) {
    selector::MetadataStore empty(&selector_->metadata(), 256);
    refused("read.metadata: layer 1", {.selector = selector_.get(), .metadata = &empty},
            absl::StatusCode::kFailedPrecondition);
  }
  // Decode is for slots that cannot wait.
  SlotRead read;
  const DecodeSlot slot = SlotOf(s, kPrompt, logits, &read);
  EXPECT_EQ(executor().Decode({&slot, 1}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(SparseRead, ATokenThatNobodyHasIsAnError) {
  Stream full = Prefilled();
  Stream part{std::make_unique<kv::KvSequence>(b_.pool.get()), nullptr};
  ASSERT_TRUE(part.sequence->Reserve(256).ok());  // nothing is here, and nothing is remote
  LateRemote remote(&executor(), full.sequence.get(), part.sequence.get(), 1);
  SlotRead read{.remote = &remote};
  std::vector<float> logits;
  const DecodeSlot slot = SlotOf(part, kPrompt, logits, &read);
  auto run = executor().StartStep({&slot, 1});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ((*run)->Advance().status().code(), absl::StatusCode::kFailedPrecondition);
}

INSTANTIATE_TEST_SUITE_P(Tiny, SparseRead,
                         testing::Values(Param{"llama", ComputeType::kF32, Kind::kDense},
                                         Param{"llama", ComputeType::kF32, Kind::kQuest},
                                         Param{"llama", ComputeType::kF32, Kind::kHata},
                                         Param{"llama", ComputeType::kF32, Kind::kInfiniGen},
                                         Param{"llama", ComputeType::kBF16, Kind::kInfiniGen},
                                         Param{"mistral", ComputeType::kF32, Kind::kHata},
                                         Param{"mistral", ComputeType::kBF16, Kind::kInfiniGen}),
                         [](const auto& info) {
                           return std::string(info.param.architecture) + "_" +
                                  std::string(ComputeTypeName(info.param.compute)) + "_" +
                                  std::string(selector::KindName(info.param.kind));
                         });

}  // namespace
}  // namespace smartgen::executor
