// The default model and helpers for tests that run it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#ifdef SMARTGEN_ON_DEVICE
#include "common/executor/backend/backend.h"
#endif
#ifdef SMARTGEN_ON_EMULATOR
#include "tests/common/executor_emulated/emulated_executor.h"
#endif
#include "common/executor/executor.h"
#include "common/kv/pool.h"
#include "common/kv/sequence.h"
#include "common/model/model.h"

namespace smartgen::executor {

inline nlohmann::json ReadGolden(const std::string& name) {
  std::ifstream file(std::string(SMARTGEN_TEST_DATA) + "/" + name);
  EXPECT_TRUE(file.good()) << name;
  return nlohmann::json::parse(file);
}

// Opened once for the whole binary. Fails the test, and says how to get the model, where it is
// absent.
inline const model::Model* DefaultModel() {
  static const std::unique_ptr<model::Model> opened = []() -> std::unique_ptr<model::Model> {
    const char* given = std::getenv("SMARTGEN_TEST_MODEL");
    const auto path = model::ResolveModelPath(given != nullptr ? given : "smollm2-135m");
    if (!path.ok()) {
      ADD_FAILURE() << path.status() << "\nset SMARTGEN_TEST_MODEL to the model's path, or run: "
                    << "smartgen fetch-model smollm2-135m";
      return nullptr;
    }
    auto model = model::Model::Open(*path);
    if (!model.ok()) {
      ADD_FAILURE() << *path << ": " << model.status();
      return nullptr;
    }
    return *std::move(model);
  }();
  return opened.get();
}

// An executor with a pool for a few sequences.
struct Bench {
  static constexpr int64_t kSequences = 12;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<kv::KvPool> pool;

  static Bench Make(const model::Model& model, ExecutorOptions options, int64_t capacity) {
#ifdef SMARTGEN_ON_DEVICE  // tests/cuda_device
    return Of(CreateExecutor(model, options, {.executor = "cuda"},
                             KvBytesAtMost(model.config(), capacity * kSequences)),
              capacity);
#elif defined(SMARTGEN_ON_EMULATOR)  // tests/common/executor_emulated
    return Of(EmulatedExecutor::Make(model, options), capacity);
#else
    return Of(CreateCpuExecutor(model, options), capacity);
#endif
  }
  static Bench Of(absl::StatusOr<std::unique_ptr<Executor>> executor, int64_t capacity) {
    Bench b;
    EXPECT_TRUE(executor.ok()) << executor.status();
    if (!executor.ok()) return b;
    b.executor = *std::move(executor);
    const kv::KvLayout layout = b.executor->Layout(capacity);
    auto pool = kv::KvPool::Create(
        layout, {.bytes = layout.PageBytesTotal() * kv::KvPool::PagesFor(capacity) * kSequences,
                 .memory = b.executor->page_memory()});
    EXPECT_TRUE(pool.ok()) << pool.status();
    b.pool = *std::move(pool);
    return b;
  }
  int64_t vocab() const { return executor->config().vocab_size; }
};

inline double NegativeLogLikelihood(std::span<const float> logits, TokenId token) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float v : logits) sum += std::exp(static_cast<double>(v) - top);
  return std::log(sum) - (static_cast<double>(logits[token]) - top);
}

// `tolerance` is a share of the largest of `want`.
inline void ExpectClose(std::span<const float> got, std::span<const float> want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  double top = 0;
  for (const float v : want) top = std::max(top, std::abs(double{v}));
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance * top) << i;
}

inline TokenId Argmax(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Prefills tokens [start, tokens.size()) in chunks of `step`; last logits.
inline std::vector<float> PrefillAll(Bench& b, kv::KvSequence& sequence,
                                     std::span<const TokenId> tokens, int64_t step,
                                     int64_t start = 0) {
  std::vector<float> logits(b.vocab());
  const int64_t count = static_cast<int64_t>(tokens.size());
  EXPECT_TRUE(sequence.Reserve(count).ok());
  for (int64_t at = start; at < count; at += step) {
    const int64_t end = std::min(count, at + step);
    PrefillChunk chunk{.sequence = &sequence, .start = at, .tokens = tokens.subspan(at, end - at)};
    if (end == count) chunk.last_logits = logits;
    const absl::Status status = b.executor->Prefill(chunk);
    EXPECT_TRUE(status.ok()) << status;
  }
  return logits;
}

inline std::vector<float> DecodeOne(Bench& b, kv::KvSequence& sequence, int64_t position,
                                    TokenId token) {
  std::vector<float> logits(b.vocab());
  EXPECT_TRUE(sequence.Reserve(position + 1).ok());
  const DecodeSlot slot{
      .sequence = &sequence, .position = position, .token = token, .logits = logits};
  const absl::Status status = b.executor->Decode({&slot, 1});
  EXPECT_TRUE(status.ok()) << status;
  return logits;
}

}  // namespace smartgen::executor
