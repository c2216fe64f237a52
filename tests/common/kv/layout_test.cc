#include "common/kv/layout.h"

#include <gtest/gtest.h>

#include "tests/common/kv/kv_test_util.h"

namespace smartgen::kv {
namespace {

TEST(KvLayout, OffsetsFollowTheFormula) {
  const KvLayout layout = SmallLayout();
  // 2 (K, V) * 16 tokens * 3 heads * 4 dims * 2 bytes
  EXPECT_EQ(layout.PageBytes(0), 768);
  EXPECT_EQ(layout.PageBytes(1), 1024);
  EXPECT_EQ(layout.PageBytesTotal(), 1792);
  EXPECT_EQ(layout.TokenBytes(0), 48);
  EXPECT_EQ(layout.TokenBytes(), 112);
  EXPECT_EQ(layout.RowBytes(0), 8);
  // head 2, token 5: (2 * 16 + 5) rows of 8 bytes
  EXPECT_EQ(layout.KOffset(0, 2, 5), 296);
  EXPECT_EQ(layout.VOffset(0, 2, 5), 384 + 296);
}

TEST(KvLayout, SizesOfSmolLm2) {
  const KvLayout layout{.layers = std::vector<LayerLayout>(30, {.kv_heads = 3, .head_dim = 64}),
                        .dtype = DType::kBF16,
                        .token_capacity = 8192};
  EXPECT_EQ(layout.TokenBytes(), 23040);
  EXPECT_TRUE(layout.Check().ok());
}

TEST(KvLayout, DTypeNamesRoundTrip) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto parsed = ParseDType(DTypeName(dtype));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, dtype);
  }
  EXPECT_EQ(ParseDType("int3").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(KvLayout, CheckNamesWhatIsOutOfRange) {
  const auto message = [](auto change) {
    KvLayout layout = SmallLayout();
    change(layout);
    const absl::Status status = layout.Check();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(base::MessageOf(status));
  };
  using L = KvLayout&;
  EXPECT_EQ(message([](L l) { l.layers.clear(); }), "KV layout: layers: want 1 to 1024, got 0");
  EXPECT_EQ(message([](L l) { l.layers[1].kv_heads = 1025; }),
            "KV layout: layer 1 kv_heads: want 1 to 1024, got 1025");
  EXPECT_EQ(message([](L l) { l.layers[0].head_dim = -1; }),
            "KV layout: layer 0 head_dim: want 1 to 1024, got -1");
  EXPECT_EQ(message([](L l) { l.dtype = static_cast<DType>(9); }),
            "KV layout: dtype: want 0 to 2, got 9");
  EXPECT_NE(message([](L l) { l.token_capacity = 0; }).find("token capacity"), std::string::npos);
  EXPECT_NE(message([](L l) { l.layers[0].window = -1; }).find("window"), std::string::npos);
  EXPECT_NE(message([](L l) { l.layers.resize(2000); }).find("layers"), std::string::npos);
}

TEST(KvLayout, H3_CheckEqualNamesTheFirstFieldThatDiffers) {
  const KvLayout ours = SmallLayout();
  EXPECT_TRUE(ours.CheckEqual(SmallLayout()).ok());
  const auto message = [&](auto change) {
    KvLayout theirs = SmallLayout();
    change(theirs);
    const absl::Status status = ours.CheckEqual(theirs);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(base::MessageOf(status));
  };
  using L = KvLayout&;
  EXPECT_EQ(message([](L l) { l.dtype = DType::kF32; }), "KV layout: dtype: ours bf16, theirs f32");
  EXPECT_EQ(message([](L l) { l.layers.pop_back(); }), "KV layout: layers: ours 2, theirs 1");
  EXPECT_EQ(message([](L l) { l.token_capacity = 7; }),
            "KV layout: token capacity: ours 1024, theirs 7");
  EXPECT_EQ(message([](L l) { l.layers[1].kv_heads = 4; }),
            "KV layout: layer 1 kv_heads: ours 2, theirs 4");
  EXPECT_EQ(message([](L l) { l.layers[0].head_dim = 5; }),
            "KV layout: layer 0 head_dim: ours 4, theirs 5");
  EXPECT_EQ(message([](L l) { l.layers[1].window = 32; }),
            "KV layout: layer 1 window: ours 64, theirs 32");
}

}  // namespace
}  // namespace smartgen::kv
