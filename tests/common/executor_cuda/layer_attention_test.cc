// Attention against the CPU executor's SelectedAttention, query by query, on pages where all that
// nobody may read is NaN; and that neighbours do not show in the bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/base/thread_pool.h"
#include "common/executor/cpu/selected_attention.h"
#include "tests/common/executor_cuda/layer_test_util.h"

namespace smartgen::executor::cuda {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

class CpuAttention {
 public:
  struct Answer {
    std::vector<float> out, lse;
  };
  // The job says what is seen; its queries and results are put in here.
  Answer Of(cpu::SelectedAttention::Job job, const float* queries, int head_dim) {
    Answer answer;
    answer.out.resize(static_cast<size_t>(job.num_heads) * head_dim);
    answer.lse.resize(static_cast<size_t>(job.num_heads));
    job.q = queries;
    job.out = answer.out.data();
    job.lse = answer.lse.data();
    attention_.Start({&job, 1});
    EXPECT_TRUE(attention_.Run());
    return answer;
  }

 private:
  base::ThreadPool pool_{1};
  std::vector<cpu::TileScratch> scratch_ = std::vector<cpu::TileScratch>(1);
  cpu::SelectedAttention attention_{&pool_, scratch_};
};

void ExpectNear(float got, float want, const char* what, int64_t row, int64_t at) {
  if (want == kNone) {
    ASSERT_EQ(got, kNone) << what << " of row " << row << " at " << at;
  } else {
    ASSERT_NEAR(got, want, 1e-5f * (1 + std::fabs(want)))
        << what << " of row " << row << " at " << at;
  }
}

// What prompts and decode steps have in common.
struct Shape {
  explicit Shape(ShapeRandom& random)
      : kv_heads(random.OneIn(2) ? 1 : random.Between(1, random.OneIn(4) ? 3 : 2)),
        group(random.OneIn(10) ? random.Between(5, 20) : random.Between(1, 4)),
        dim(random.OneIn(30) ? random.Between(100, random.OneIn(2) ? 1024 : 300)
                             : SomeDim(random, 34)),
        dtype(random.DType()),
        heads(kv_heads * group) {}
  int64_t Length() const { return int64_t{heads} * dim; }
  // Random queries, now and then large ones, whose softmax has few entries left.
  void FillQueries(ShapeRandom& random, int64_t rows, Rows& queries) const {
    for (int64_t r = 0; r < rows; ++r) {
      const float scale = random.OneIn(4) ? 4.0f : 1.0f;
      for (int64_t i = 0; i < Length(); ++i) queries.Set(r, i, scale * random.Normal());
    }
  }
  std::string Text() const {
    return fmt::format("{} KV heads, group {}, dim {}, type {}", kv_heads, group, dim,
                       kv::DTypeName(dtype));
  }

  int kv_heads, group, dim;
  kv::DType dtype;
  int heads;
};

// --- Prefill ---

struct Prompt {
  explicit Prompt(ShapeRandom& random)
      : shape(random),
        position(random.OneIn(3) ? 0 : random.Between(0, 50)),
        rows(SomeRows(random, shape.dim > 100 ? 5 : 14)),
        window(random.OneIn(2) ? 0 : random.Between(1, 40)),
        batch(random, shape.kv_heads, shape.dim, shape.dtype, {position + rows + 20}),
        queries(random, rows, shape.Length()) {
    shape.FillQueries(random, rows, queries);
    const int64_t first = Begin(0);
    for (int64_t token = first; token < position + rows; ++token) {
      for (int h = 0; h < shape.kv_heads; ++h) batch.Write(random, 0, h, token);
    }
  }
  int64_t Begin(int64_t row) const {
    return window == 0 ? 0 : std::max<int64_t>(0, position + row + 1 - window);
  }
  // Rows [begin, end) of the prompt as a launch of their own.
  LaunchError Run(int64_t begin, int64_t end, Rows& out, std::vector<float>& lse) {
    PrefillAttentionArgs args{.layer = batch.Layer(),
                              .position = position + begin,
                              .rows = end - begin,
                              .window = window,
                              .query_heads = shape.heads,
                              .queries = queries.Row(begin),
                              .query_stride = queries.stride(),
                              .out = out.Row(begin),
                              .out_stride = out.stride(),
                              .lse = lse.empty() ? nullptr : lse.data() + begin * shape.heads};
    args.layer.pages = batch.Pages(0);
    return PrefillAttention(args, nullptr);
  }

  Shape shape;
  int64_t position, rows;
  int window;
  PagedBatch batch;
  Rows queries;
};

TEST(PrefillAttentionKernelTest, EveryRowIsTheCpus) {
  ShapeRandom random(1);
  CpuAttention cpu_attention;
  for (int shape = 0; shape < kShapes; ++shape) {
    Prompt prompt(random);
    const Shape& s = prompt.shape;
    SCOPED_TRACE(fmt::format("shape {}: {}, {} rows from {}, window {}", shape, s.Text(),
                             prompt.rows, prompt.position, prompt.window));
    Rows out(random, prompt.rows, s.Length());
    std::vector<float> lse(static_cast<size_t>(prompt.rows) * s.heads);
    random.ShuffleThreads();
    ASSERT_LAUNCHED(prompt.Run(0, prompt.rows, out, lse));
    ASSERT_TRUE(out.GuardsStand());
    for (int64_t r = 0; r < prompt.rows; ++r) {
      const CpuAttention::Answer want = cpu_attention.Of({.sequence = &prompt.batch[0],
                                                          .num_heads = s.heads,
                                                          .begin = prompt.Begin(r),
                                                          .end = prompt.position + r + 1},
                                                         prompt.queries.Row(r), s.dim);
      for (int64_t i = 0; i < s.Length(); ++i) {
        ExpectNear(out.Get(r, i), want.out[i], "value", r, i);
        if (testing::Test::HasFatalFailure()) return;
      }
      for (int h = 0; h < s.heads; ++h) {
        ExpectNear(lse[r * s.heads + h], want.lse[h], "lse", r, h);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(PrefillAttentionKernelTest, ChunksDoNotShowInTheBits) {
  ShapeRandom random(2);
  for (int shape = 0; shape < kShapes / 10; ++shape) {
    Prompt prompt(random);
    const Shape& s = prompt.shape;
    Rows whole(random, prompt.rows, s.Length());
    Rows pieces = whole;
    std::vector<float> whole_lse(static_cast<size_t>(prompt.rows) * s.heads);
    std::vector<float> pieces_lse = whole_lse;
    ASSERT_LAUNCHED(prompt.Run(0, prompt.rows, whole, whole_lse));
    for (int64_t begin = 0; begin < prompt.rows;) {
      const int64_t end = begin + random.Between(1, static_cast<int>(prompt.rows - begin));
      random.ShuffleThreads();
      ASSERT_LAUNCHED(prompt.Run(begin, end, pieces, pieces_lse));
      begin = end;
    }
    ASSERT_TRUE(whole == pieces) << "shape " << shape << ": " << s.Text();
    ASSERT_EQ(whole_lse, pieces_lse) << "shape " << shape << ": " << s.Text();
  }
}

// --- Decode ---

// Slots with sequences of their own, in rows of no order.
struct Step {
  explicit Step(ShapeRandom& random)
      : shape(random),
        count(SomeRows(random, random.OneIn(4) ? 4 : 2)),
        rows(count + random.Between(0, 2)),
        part(random.OneIn(4)    ? kAttentionPart
             : random.OneIn(30) ? random.Between(1, 5)
                                : random.Between(12, 70)),
        batch(random, shape.kv_heads, shape.dim, shape.dtype, Capacities()),
        queries(random, rows, shape.Length()) {
    shape.FillQueries(random, rows, queries);
    std::vector<int64_t> order;
    for (int r = 0; r < rows; ++r) {
      order.insert(order.begin() + random.Between(0, static_cast<int>(order.size())), r);
    }
    lists.resize(static_cast<size_t>(count));
    for (int s = 0; s < count; ++s) Add(random, s, order[static_cast<size_t>(s)]);
  }
  static constexpr int kMostTokens = 150;
  std::vector<int64_t> Capacities() const {
    return std::vector<int64_t>(static_cast<size_t>(count), kMostTokens);
  }

  // Of one slot: [kv head] tokens seen, and what the slot points at.
  struct Lists {
    std::vector<std::vector<int32_t>> tokens;
    std::vector<int32_t> index, begins, ends;
  };

  void Add(ShapeRandom& random, int s, int64_t row) {
    Lists& list = lists[static_cast<size_t>(s)];
    list.tokens.resize(static_cast<size_t>(shape.kv_heads));
    AttendSlot slot{.pages = batch.Pages(static_cast<size_t>(s)), .row = row};
    const int most = random.OneIn(8) ? kMostTokens : 26;
    const int entries = random.OneIn(8) ? random.Between(0, 1) : random.Between(1, most);
    const int begin = random.OneIn(2) ? 0 : random.Between(0, entries);
    slot.begin = begin;
    slot.end = random.OneIn(4) ? random.Between(begin, entries) : entries;
    if (random.OneIn(2)) {
      slot.index_stride = entries + random.Between(0, 3);
      // Gaps are no token.
      list.index.assign(static_cast<size_t>(slot.index_stride * shape.kv_heads) + 1, -1);
      for (int h = 0; h < shape.kv_heads; ++h) {
        for (int i = 0; i < entries; ++i) {
          list.index[static_cast<size_t>(h * slot.index_stride + i)] =
              random.Between(0, kMostTokens - 1);
        }
      }
      slot.index = list.index.data();
    }
    if (random.OneIn(2)) {
      for (int h = 0; h < shape.kv_heads; ++h) {
        list.begins.push_back(random.Between(0, entries));
        list.ends.push_back(random.Between(list.begins.back(), entries));
      }
      // Now and then only one of the two.
      if (!random.OneIn(3)) slot.begins = list.begins.data();
      if (slot.begins == nullptr || !random.OneIn(3)) slot.ends = list.ends.data();
    }
    for (int h = 0; h < shape.kv_heads; ++h) {
      const int64_t first = slot.begins == nullptr ? slot.begin : slot.begins[h];
      const int64_t end = slot.ends == nullptr ? slot.end : slot.ends[h];
      most_entries = std::max(most_entries, end - first);
      for (int64_t i = first; i < end; ++i) {
        const int32_t token = slot.index == nullptr
                                  ? static_cast<int32_t>(i)
                                  : list.index[static_cast<size_t>(h * slot.index_stride + i)];
        list.tokens[static_cast<size_t>(h)].push_back(token);
        batch.Write(random, static_cast<size_t>(s), h, token);
      }
    }
    slots.push_back(slot);
  }

  // Slots [begin, end) as a launch of their own.
  LaunchError Run(int begin, int end, int64_t most, Rows& out, std::vector<float>* lse) {
    // No more than is asked for, all NaN.
    std::vector<float> scratch(
        static_cast<size_t>(DecodeScratchFloats(end - begin, shape.heads, shape.dim, most, part)),
        std::numeric_limits<float>::quiet_NaN());
    return DecodeAttention({.layer = batch.Layer(),
                            .slots = slots.data() + begin,
                            .count = end - begin,
                            .most_entries = most,
                            .query_heads = shape.heads,
                            .queries = queries.floats(),
                            .query_stride = queries.stride(),
                            .out = out.floats(),
                            .out_stride = out.stride(),
                            .lse = lse == nullptr ? nullptr : lse->data(),
                            .part = part,
                            .scratch = scratch.empty() ? nullptr : scratch.data()},
                           nullptr);
  }

  Shape shape;
  int count, rows;
  int64_t part;
  PagedBatch batch;
  Rows queries;
  std::vector<Lists> lists;
  std::vector<AttendSlot> slots;
  int64_t most_entries = 0;
};

// What the CPU has for a KV head's list: its query heads of the answer.
CpuAttention::Answer AnswerOf(CpuAttention& cpu_attention, Step& step, int slot, int kv_head) {
  const Shape& s = step.shape;
  const std::vector<int32_t>& tokens =
      step.lists[static_cast<size_t>(slot)].tokens[static_cast<size_t>(kv_head)];
  std::vector<int32_t> index;  // the same for all heads
  for (int h = 0; h < s.kv_heads; ++h) index.insert(index.end(), tokens.begin(), tokens.end());
  return cpu_attention.Of({.sequence = &step.batch[static_cast<size_t>(slot)],
                           .num_heads = s.heads,
                           .index = index,
                           .k = static_cast<int64_t>(tokens.size())},
                          step.queries.Row(step.slots[static_cast<size_t>(slot)].row), s.dim);
}

TEST(DecodeAttentionKernelTest, EverySlotIsTheCpusWithAnIndexOrWithout) {
  ShapeRandom random(3);
  CpuAttention cpu_attention;
  for (int shape = 0; shape < kShapes; ++shape) {
    Step step(random);
    const Shape& s = step.shape;
    SCOPED_TRACE(fmt::format("shape {}: {}, {} slots, up to {} entries, parts of {}", shape,
                             s.Text(), step.count, step.most_entries, step.part));
    Rows out(random, step.rows, s.Length());
    Rows want = out;
    std::vector<float> lse(static_cast<size_t>(step.rows) * s.heads, 7.0f);
    std::vector<float> want_lse = lse;
    // A bound need not be tight.
    const int64_t most = step.most_entries + (random.OneIn(2) ? 0 : random.Between(0, 100));
    random.ShuffleThreads();
    ASSERT_LAUNCHED(step.Run(0, step.count, most, out, &lse));
    ASSERT_TRUE(out.GuardsStand());
    for (int slot = 0; slot < step.count; ++slot) {
      const int64_t row = step.slots[static_cast<size_t>(slot)].row;
      for (int kv_head = 0; kv_head < s.kv_heads; ++kv_head) {
        const CpuAttention::Answer answer = AnswerOf(cpu_attention, step, slot, kv_head);
        for (int h = kv_head * s.group; h < (kv_head + 1) * s.group; ++h) {
          ExpectNear(lse[row * s.heads + h], answer.lse[h], "lse", row, h);
          want_lse[row * s.heads + h] = lse[row * s.heads + h];
          for (int c = 0; c < s.dim; ++c) {
            const int at = h * s.dim + c;
            ExpectNear(out.Get(row, at), answer.out[at], "value", row, at);
            if (testing::Test::HasFatalFailure()) return;
            want.Set(row, at, out.Get(row, at));
          }
        }
      }
    }
    // Rows that no slot has are as they were.
    ASSERT_TRUE(out == want);
    ASSERT_EQ(lse, want_lse);
  }
}

TEST(DecodeAttentionKernelTest, TheBatchDoesNotShowInTheBits) {
  ShapeRandom random(4);
  for (int shape = 0; shape < kShapes / 10; ++shape) {
    Step step(random);
    const Shape& s = step.shape;
    const Rows blank(random, step.rows, s.Length());
    Rows together = blank, alone = blank, without_lse = blank;
    std::vector<float> lse(static_cast<size_t>(step.rows) * s.heads, 7.0f);
    std::vector<float> alone_lse = lse;
    ASSERT_LAUNCHED(step.Run(0, step.count, step.most_entries, together, &lse));
    for (int slot = 0; slot < step.count; ++slot) {
      int64_t most = 0;
      for (const auto& tokens : step.lists[static_cast<size_t>(slot)].tokens) {
        most = std::max(most, static_cast<int64_t>(tokens.size()));
      }
      random.ShuffleThreads();
      ASSERT_LAUNCHED(step.Run(slot, slot + 1, most, alone, &alone_lse));
    }
    ASSERT_TRUE(together == alone) << "shape " << shape << ": " << s.Text();
    ASSERT_EQ(lse, alone_lse) << "shape " << shape << ": " << s.Text();
    ASSERT_LAUNCHED(step.Run(0, step.count, step.most_entries, without_lse, nullptr));
    ASSERT_TRUE(together == without_lse);
  }
}

TEST(DecodeAttentionKernelTest, HundredsOfPartsAreMergedAsOne) {
  ShapeRandom random(5);
  CpuAttention cpu_attention;
  PagedBatch batch(random, 1, 3, kv::DType::kF32, {300});
  for (int64_t token = 0; token < 300; ++token) batch.Write(random, 0, 0, token);
  Rows queries(random, 1, 3), out(random, 1, 3);
  queries.Fill(random);
  float lse = 0;
  const AttendSlot slot{.pages = batch.Pages(0), .end = 300};
  std::vector<float> scratch(static_cast<size_t>(DecodeScratchFloats(1, 1, 3, 300, 1)));
  ASSERT_LAUNCHED(DecodeAttention({.layer = batch.Layer(),
                                   .slots = &slot,
                                   .count = 1,
                                   .most_entries = 300,
                                   .query_heads = 1,
                                   .queries = queries.floats(),
                                   .query_stride = queries.stride(),
                                   .out = out.floats(),
                                   .out_stride = out.stride(),
                                   .lse = &lse,
                                   .part = 1,
                                   .scratch = scratch.data()},
                                  nullptr));
  const CpuAttention::Answer want =
      cpu_attention.Of({.sequence = &batch[0], .num_heads = 1, .end = 300}, queries.floats(), 3);
  for (int c = 0; c < 3; ++c) ExpectNear(out.Get(0, c), want.out[c], "value", 0, c);
  ExpectNear(lse, want.lse[0], "lse", 0, 0);
}

// A float has room for e^88.
TEST(DecodeAttentionKernelTest, ScoresOfHundredsNeitherOverflowNorVanish) {
  ShapeRandom random(6);
  PagedBatch batch(random, 1, 1, kv::DType::kF32, {40});
  for (int token = 0; token < 40; ++token) {
    selector::StoreElement(static_cast<float>(token), kv::DType::kF32, batch.Key(0, 0, token));
    selector::StoreElement(static_cast<float>(token), kv::DType::kF32, batch.Value(0, 0, token));
  }
  const AttendSlot slot{.pages = batch.Pages(0), .end = 40};
  for (const float query : {300.0f, -300.0f}) {
    float out = 0;
    float lse = 0;
    ASSERT_LAUNCHED(DecodeAttention({.layer = batch.Layer(),
                                     .slots = &slot,
                                     .count = 1,
                                     .most_entries = 40,
                                     .query_heads = 1,
                                     .queries = &query,
                                     .query_stride = 1,
                                     .out = &out,
                                     .out_stride = 1,
                                     .lse = &lse},
                                    nullptr));
    const float best = query > 0 ? 39.0f : 0.0f;
    EXPECT_EQ(out, best);
    EXPECT_NEAR(lse, best * query, 1e-5f * (1 + best * query));
  }
}

TEST(LayerLaunchersTest, AttentionThatDoesNotFitIsRefusedBeforeAnythingRuns) {
  ShapeRandom random(7);
  PagedBatch batch(random, 2, 4, kv::DType::kF32, {16});
  PrefillAttentionArgs prefill{
      .layer = batch.Layer(), .rows = 1, .query_heads = 4, .query_stride = 16, .out_stride = 15};
  EXPECT_NE(PrefillAttention(prefill, nullptr), nullptr);
  prefill.out_stride = 16;
  prefill.query_heads = 3;
  EXPECT_NE(PrefillAttention(prefill, nullptr), nullptr);
  prefill.query_heads = 4;
  prefill.position = -1;
  EXPECT_NE(PrefillAttention(prefill, nullptr), nullptr);
  prefill.position = 0;
  prefill.window = -1;
  EXPECT_NE(PrefillAttention(prefill, nullptr), nullptr);
  prefill.window = 0;
  prefill.layer.head_dim = 5;
  EXPECT_NE(PrefillAttention(prefill, nullptr), nullptr);

  DecodeAttentionArgs decode{.layer = batch.Layer(),
                             .count = 1,
                             .most_entries = 257,
                             .query_heads = 4,
                             .query_stride = 16,
                             .out_stride = 16};
  EXPECT_NE(DecodeAttention(decode, nullptr), nullptr);  // no scratch
  decode.most_entries = 1;
  decode.part = 0;
  EXPECT_NE(DecodeAttention(decode, nullptr), nullptr);
  decode.part = 1;
  decode.count = 65536;
  EXPECT_NE(DecodeAttention(decode, nullptr), nullptr);
  // Nothing to do is no error.
  decode.count = 0;
  EXPECT_EQ(DecodeAttention(decode, nullptr), nullptr);
}

}  // namespace
}  // namespace smartgen::executor::cuda
