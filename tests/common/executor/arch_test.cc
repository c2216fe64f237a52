// Tiny random models in safetensors, all positions against the reference (transformers, float32).
#include "tests/common/executor/model/fixture.h"

namespace smartgen::executor {
namespace {

class Architecture : public testing::TestWithParam<const char*> {};

TEST_P(Architecture, AllLogitsEqualTheReference) {
  const std::string folder = std::string("arch_") + GetParam();
  auto model = model::Model::Open(std::string(SMARTGEN_TEST_DATA) + "/" + folder);
  ASSERT_TRUE(model.ok()) << model.status();
  Bench b = Bench::Make(**model, {.compute = ComputeType::kF32}, 256);
  ASSERT_NE(b.executor, nullptr);
  const nlohmann::json expected = ReadGolden(folder + "/expected.json");
  for (const auto& sequence : expected["sequences"]) {
    const auto ids = sequence["ids"].get<std::vector<TokenId>>();
    // Whole, and cut in the middle of a page.
    for (size_t step : {ids.size(), size_t{9}}) {
      kv::KvSequence kv(b.pool.get());
      ASSERT_TRUE(kv.Reserve(static_cast<int64_t>(ids.size())).ok());
      double worst = 0;
      for (size_t at = 0; at < ids.size(); at += step) {
        PrefillChunk chunk{.sequence = &kv, .start = static_cast<int64_t>(at)};
        chunk.tokens = std::span(ids).subspan(at, std::min(step, ids.size() - at));
        chunk.on_logits = [&](int64_t position, std::span<const float> logits) {
          const auto& want = sequence["logits"][position];
          ASSERT_EQ(want.size(), logits.size());
          for (size_t i = 0; i < logits.size(); ++i) {
            worst = std::max(worst, std::abs(want[i].get<double>() - logits[i]));
          }
        };
        const absl::Status status = b.executor->Prefill(chunk);
        ASSERT_TRUE(status.ok()) << status;
      }
      EXPECT_LE(worst, 1e-4);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, Architecture, testing::Values("llama", "mistral"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace smartgen::executor
