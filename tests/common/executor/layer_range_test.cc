// A step whose layers are run in pieces, by several calls or executors, is the whole step bit for
// bit; so is one that runs between the layers of a prefill.
#include "tests/common/executor/model/fixture.h"

namespace smartgen::executor {
namespace {

using testing::HasSubstr;

constexpr int64_t kPrompt = 40;

std::vector<TokenId> Tokens(int64_t count, int seed) {
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<TokenId>((i * 37 + seed * 101 + 5) % 256));
  }
  return tokens;
}

std::vector<std::byte> AllKv(kv::KvSequence& sequence, int layer, int64_t end) {
  std::vector<std::byte> bytes;
  for (const auto& segment : sequence.Segments(layer, 0, end)) {
    bytes.insert(bytes.end(), segment.begin(), segment.end());
  }
  return bytes;
}

struct Param {
  const char* architecture;
  ComputeType compute;
};

class LayerRange : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    auto model =
        model::Model::Open(std::string(SMARTGEN_TEST_DATA) + "/arch_" + GetParam().architecture);
    ASSERT_TRUE(model.ok()) << model.status();
    for (Bench* b : {&here_, &there_}) {
      *b = Bench::Make(**model, {.compute = GetParam().compute, .threads = 2}, 256);
      ASSERT_NE(b->executor, nullptr);
    }
    layers_ = here_.executor->config().num_layers();
  }
  // A sequence of kPrompt + seed tokens and room for more.
  std::unique_ptr<kv::KvSequence> Prefilled(Bench& b, int seed) {
    auto sequence = std::make_unique<kv::KvSequence>(b.pool.get());
    PrefillAll(b, *sequence, Tokens(kPrompt + seed, seed), 512);
    EXPECT_TRUE(sequence->Reserve(128).ok());
    return sequence;
  }
  std::vector<float> Hidden() { return std::vector<float>(here_.executor->config().hidden_dim); }

  Bench here_, there_;
  int layers_ = 0;
};

TEST_P(LayerRange, TwoExecutorsWithALayerRangeEachGiveTheWholeStep) {
  for (int k = 0; k <= layers_; ++k) {
    auto whole = Prefilled(here_, 1);
    auto front = Prefilled(here_, 1);
    auto back = Prefilled(there_, 1);
    for (int64_t position = kPrompt + 1; position < kPrompt + 4; ++position) {
      const auto token = static_cast<TokenId>(position * 3 % 256);
      const std::vector<float> want = DecodeOne(here_, *whole, position, token);
      std::vector<float> hidden = Hidden(), got(want.size());
      if (k > 0) {
        const DecodeSlot first{.sequence = front.get(),
                               .position = position,
                               .token = token,
                               .layer_end = k,
                               .hidden = hidden};
        // The last layer's output is asked for in place of logits.
        ASSERT_EQ(here_.executor->Decode({&first, 1}), absl::OkStatus());
      }
      const DecodeSlot second{.sequence = back.get(),
                              .position = position,
                              .token = token,
                              .logits = got,
                              .layer_begin = k,
                              .hidden = hidden};
      ASSERT_EQ(there_.executor->Decode({&second, 1}), absl::OkStatus());
      EXPECT_EQ(got, want) << "cut before layer " << k;
      for (int layer = 0; layer < layers_; ++layer) {
        EXPECT_EQ(AllKv(layer < k ? *front : *back, layer, position + 1),
                  AllKv(*whole, layer, position + 1));
      }
    }
  }
}

TEST_P(LayerRange, TheLastHiddenStateGivesTheLogitsElsewhere) {
  auto whole = Prefilled(here_, 2);
  auto split = Prefilled(there_, 2);
  const int64_t position = kPrompt + 2;
  const std::vector<float> want = DecodeOne(here_, *whole, position, 9);
  std::vector<float> hidden = Hidden(), got(want.size());
  const DecodeSlot first{
      .sequence = split.get(), .position = position, .token = 9, .layer_end = 1, .hidden = hidden};
  ASSERT_EQ(there_.executor->Decode({&first, 1}), absl::OkStatus());
  const DecodeSlot rest{.sequence = split.get(),
                        .position = position,
                        .token = 9,
                        .layer_begin = 1,
                        .hidden = hidden};
  ASSERT_EQ(there_.executor->Decode({&rest, 1}), absl::OkStatus());
  kv::KvSequence empty(here_.pool.get());  // its KV is not looked at
  ASSERT_TRUE(empty.Reserve(128).ok());
  const DecodeSlot output{.sequence = &empty,
                          .position = position,
                          .token = 9,
                          .logits = got,
                          .layer_begin = layers_,
                          .hidden = hidden};
  ASSERT_EQ(here_.executor->Decode({&output, 1}), absl::OkStatus());
  EXPECT_EQ(got, want);
}

TEST_P(LayerRange, SlotsOfDifferentRangesShareABatch) {
  constexpr int kSlots = 6;
  std::vector<std::unique_ptr<kv::KvSequence>> whole, mixed;
  std::vector<std::vector<float>> want, got(kSlots, std::vector<float>(here_.vocab()));
  std::vector<std::vector<float>> inputs, hidden;
  std::vector<DecodeSlot> batch;
  for (int s = 0; s < kSlots; ++s) {
    const int64_t position = kPrompt + s;
    whole.push_back(Prefilled(here_, s));
    mixed.push_back(Prefilled(there_, s));
    // What enters the second layer.
    hidden.push_back(Hidden());
    const DecodeSlot front{.sequence = whole[s].get(),
                           .position = position,
                           .token = s,
                           .layer_end = 1,
                           .hidden = hidden[s]};
    ASSERT_EQ(here_.executor->Decode({&front, 1}), absl::OkStatus());
    inputs.push_back(hidden[s]);
    want.push_back(DecodeOne(here_, *whole[s], position, s));
    DecodeSlot slot{.sequence = mixed[s].get(), .position = position, .token = s};
    if (s % 3 == 0) {  // all layers
      slot.logits = got[s];
    } else if (s % 3 == 1) {  // the first
      hidden[s] = Hidden();
      slot.layer_end = 1;
      slot.hidden = hidden[s];
    } else {  // the others
      slot.layer_begin = 1;
      slot.hidden = hidden[s];
      slot.logits = got[s];
    }
    batch.push_back(slot);
  }
  ASSERT_EQ(there_.executor->Decode(batch), absl::OkStatus());
  for (int s = 0; s < kSlots; ++s) {
    if (s % 3 == 1) {
      EXPECT_EQ(hidden[s], inputs[s]) << "slot " << s;
    } else {
      EXPECT_EQ(got[s], want[s]) << "slot " << s;
    }
    for (int layer = 0; layer < layers_; ++layer) {
      if ((s % 3 == 1 && layer > 0) || (s % 3 == 2 && layer == 0)) continue;
      EXPECT_EQ(AllKv(*mixed[s], layer, kPrompt + s + 1), AllKv(*whole[s], layer, kPrompt + s + 1));
    }
  }
}

TEST_P(LayerRange, OnlyTheRangesLayersMustBeLocal) {
  auto full = Prefilled(here_, 3);
  kv::KvSequence part(there_.pool.get());
  ASSERT_TRUE(part.Reserve(128).ok());
  const int64_t position = kPrompt + 3;
  const auto from = full->Segments(1, 0, position);
  const auto to = part.Segments(1, 0, position);
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) std::copy(from[i].begin(), from[i].end(), to[i].data());
  part.MarkLocal(1, 0, position);
  std::vector<float> hidden = Hidden(), logits(here_.vocab());
  DecodeSlot slot{.sequence = &part,
                  .position = position,
                  .token = 1,
                  .logits = logits,
                  .layer_begin = 1,
                  .hidden = hidden};
  EXPECT_EQ(there_.executor->Decode({&slot, 1}), absl::OkStatus());
  slot.layer_begin = 0;
  const absl::Status status = there_.executor->Decode({&slot, 1});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(base::MessageOf(status)), HasSubstr("layer 0"));
}

TEST_P(LayerRange, StepsBetweenThePrefillsLayersChangeNeitherResult) {
  const std::vector<TokenId> prompt = Tokens(100, 7);
  auto alone = Prefilled(here_, 4);
  kv::KvSequence undisturbed(here_.pool.get());
  const std::vector<float> want_prefill = PrefillAll(here_, undisturbed, prompt, 512);
  auto steps = Prefilled(there_, 4);
  std::vector<std::vector<float>> want, got;
  int64_t position = kPrompt + 4;
  kv::KvSequence disturbed(there_.pool.get());
  ASSERT_TRUE(disturbed.Reserve(100).ok());
  std::vector<float> logits(there_.vocab());
  PrefillChunk chunk{.sequence = &disturbed, .tokens = prompt, .last_logits = logits};
  std::unique_ptr<StepRun> open;  // begun in one call of the hook, ended in the next
  std::vector<float> open_logits(there_.vocab());
  auto other = Prefilled(there_, 5);
  chunk.cancelled = [&] {
    const auto token = static_cast<TokenId>(position % 256);
    want.push_back(DecodeOne(here_, *alone, position, token));
    got.push_back(DecodeOne(there_, *steps, position, token));
    ++position;
    if (open != nullptr) {
      EXPECT_EQ(*open->Advance(), StepRun::State::kDone);
    } else {
      const DecodeSlot slot{
          .sequence = other.get(), .position = kPrompt + 5, .token = 8, .logits = open_logits};
      open = *there_.executor->StartStep({&slot, 1});
    }
    return false;
  };
  ASSERT_EQ(there_.executor->Prefill(chunk), absl::OkStatus());
  EXPECT_EQ(static_cast<int>(got.size()), layers_);
  EXPECT_EQ(got, want);
  EXPECT_EQ(logits, want_prefill);
  auto other_alone = Prefilled(here_, 5);
  EXPECT_EQ(open_logits, DecodeOne(here_, *other_alone, kPrompt + 5, 8));
}

TEST_P(LayerRange, QueriesAreReportedOfEachLayerBeforeItsKv) {
  const std::vector<TokenId> prompt = Tokens(20, 1);
  std::vector<std::string> calls;
  PrefillChunk chunk{.tokens = prompt};
  kv::KvSequence sequence(here_.pool.get());
  ASSERT_TRUE(sequence.Reserve(20).ok());
  chunk.sequence = &sequence;
  const model::LayerConfig& l = here_.executor->config().layers[0];
  std::vector<float> row_7, whole_7;
  chunk.on_queries = [&](int layer, std::span<const float> queries, int64_t ld) {
    ASSERT_GE(ld, l.num_heads * l.head_dim);
    ASSERT_GE(static_cast<int64_t>(queries.size()), 19 * ld + l.num_heads * l.head_dim);
    const auto row = queries.subspan(7 * ld, l.num_heads * l.head_dim);
    if (layer == 0) whole_7.assign(row.begin(), row.end());
    calls.push_back("queries " + std::to_string(layer));
  };
  chunk.on_layer = [&](int layer, int64_t, int64_t) {
    calls.push_back("layer " + std::to_string(layer));
  };
  ASSERT_EQ(here_.executor->Prefill(chunk), absl::OkStatus());
  EXPECT_THAT(calls, testing::ElementsAre("queries 0", "layer 0", "queries 1", "layer 1"));
  // A token's queries do not depend on the chunk that it came in.
  kv::KvSequence again(here_.pool.get());
  ASSERT_TRUE(again.Reserve(20).ok());
  PrefillChunk first{.sequence = &again, .tokens = {prompt.data(), 5}};
  ASSERT_EQ(here_.executor->Prefill(first), absl::OkStatus());
  PrefillChunk second{.sequence = &again, .start = 5, .tokens = std::span(prompt).subspan(5)};
  second.on_queries = [&](int layer, std::span<const float> queries, int64_t ld) {
    const auto row = queries.subspan(2 * ld, l.num_heads * l.head_dim);
    if (layer == 0) row_7.assign(row.begin(), row.end());
  };
  ASSERT_EQ(here_.executor->Prefill(second), absl::OkStatus());
  EXPECT_EQ(row_7, whole_7);
  EXPECT_FALSE(row_7.empty());
}

TEST_P(LayerRange, RefusesRangesAndSizesThatDoNotFitByName) {
  auto sequence = Prefilled(here_, 0);
  std::vector<float> hidden = Hidden(), logits(here_.vocab());
  const DecodeSlot good{.sequence = sequence.get(),
                        .position = kPrompt,
                        .token = 1,
                        .logits = logits,
                        .layer_begin = 1,
                        .hidden = hidden};
  ASSERT_EQ(here_.executor->Decode({&good, 1}), absl::OkStatus());
  const auto refused = [&](const char* field, auto change) {
    DecodeSlot bad = good;
    change(bad);
    const absl::Status status = here_.executor->Decode({&bad, 1});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(base::MessageOf(status)), HasSubstr(field));
    EXPECT_THAT(std::string(base::MessageOf(status)), HasSubstr("slot 0"));
  };
  refused("layer_begin", [](DecodeSlot& s) { s.layer_begin = -1; });
  refused("layer_begin", [&](DecodeSlot& s) { s.layer_begin = layers_ + 1; });
  refused("layer_end", [](DecodeSlot& s) { s.layer_end = 1; });
  refused("layer_end", [&](DecodeSlot& s) { s.layer_end = layers_ + 1; });
  refused("layer_end", [](DecodeSlot& s) { s.layer_end = -2; });
  refused("hidden", [](DecodeSlot& s) { s.hidden = {}; });
  refused("hidden", [](DecodeSlot& s) { s.hidden = s.hidden.first(3); });
  refused("hidden", [](DecodeSlot& s) {
    s.layer_begin = 0;
    s.layer_end = 1;
    s.hidden = {};
  });
  refused("logits", [](DecodeSlot& s) { s.logits = s.logits.first(1); });
  refused("logits", [&](DecodeSlot& s) {
    s.layer_begin = layers_;
    s.logits = {};
  });
  refused("logits", [](DecodeSlot& s) {
    s.layer_begin = 0;
    s.hidden = {};
    s.logits = {};
  });
}

INSTANTIATE_TEST_SUITE_P(Tiny, LayerRange,
                         testing::Values(Param{"llama", ComputeType::kF32},
                                         Param{"llama", ComputeType::kBF16},
                                         Param{"mistral", ComputeType::kF32}),
                         [](const auto& info) {
                           return std::string(info.param.architecture) + "_" +
                                  std::string(ComputeTypeName(info.param.compute));
                         });

}  // namespace
}  // namespace smartgen::executor
