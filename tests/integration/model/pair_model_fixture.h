// prefilld and decoded with the real executor and the default model, over a link whose speed the
// test sets.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/channel/fault_channel.h"
#include "common/executor/executor.h"
#include "common/model/model.h"
#include "common/rpc/client.h"
#include "tests/integration/pair_harness.h"

namespace smartgen::integration {

inline std::string ModelPath() {
  const char* given = std::getenv("SMARTGEN_TEST_MODEL");
  if (given != nullptr && *given != '\0') return given;
  const auto path = model::ResolveModelPath("smollm2-135m");
  if (!path.ok()) ADD_FAILURE() << path.status().message();
  return path.ok() ? *path : "";
}

class PairModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = ModelPath();
    ASSERT_FALSE(path.empty());
    prefill_server::Options prefill;
    prefill.model = path;
    prefill.listen = prefill.data_listen = "127.0.0.1:0";
    prefill.metrics_listen.clear();
    prefill.compute = "f32";
    prefill.context_length = 2048;
    prefill.kv_bytes = 256 << 20;
    prefill.max_prefill_tokens = 256;
    // As FromModel does, but with a link whose speed the test sets.
    const auto model = model::Model::Open(path);
    ASSERT_TRUE(model.ok()) << model.status();
    executor::ExecutorOptions executor_options;
    executor_options.compute = executor::ComputeType::kF32;
    executor_options.max_prefill_tokens = prefill.max_prefill_tokens;
    PrefillServer::Parts parts;
    auto executor = executor::CreateCpuExecutor(**model, executor_options);
    ASSERT_TRUE(executor.ok()) << executor.status();
    parts.executor = *std::move(executor);
    parts.model_name = (*model)->config().name;
    parts.model_fingerprint = (*model)->fingerprint();
    parts.wrap_channel = [this](std::shared_ptr<channel::Channel> inner) {
      return wrap_ ? channel::FaultChannel::Wrap(std::move(inner), faults_) : inner;
    };
    auto prefill_server = PrefillServer::Start(prefill, std::move(parts));
    ASSERT_TRUE(prefill_server.ok()) << prefill_server.status();
    prefill_ = *std::move(prefill_server);
    decode_server::Options decode;
    decode.model = path;
    decode.listen = "127.0.0.1:0";
    decode.metrics_listen.clear();
    decode.prefill = {prefill_->address()};
    decode.compute = "f32";
    decode.context_length = 2048;
    decode.kv_bytes = 256 << 20;
    decode.max_prefill_tokens = 256;
    auto decode_server = DecodeServer::FromModel(decode);
    ASSERT_TRUE(decode_server.ok()) << decode_server.status();
    decode_ = *std::move(decode_server);
    stub_ = v1::Decode::NewStub(
        grpc::CreateChannel(decode_->address(), grpc::InsecureChannelCredentials()));
    ASSERT_TRUE(WaitUntil([&] { return decode_->Info().peers(0).up(); }));
  }

  // With nothing cached on either side.
  Result RunAnew(v1::GenerateRequest request) {
    decode_->prefix_cache().Clear();
    prefill_->prefix_cache().Clear();
    const Result result = Call(stub_.get(), std::move(request)).Wait();
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    return result;
  }

  // Of the tokens that a request makes.
  std::vector<float> Logprobs(const v1::GenerateRequest& request, bool anew) {
    if (anew) {
      decode_->prefix_cache().Clear();
      prefill_->prefix_cache().Clear();
    }
    grpc::ClientContext context;
    rpc::SetTimeout(context, std::chrono::seconds(60));
    const auto reader = stub_->Generate(&context, request);
    std::vector<float> out;
    v1::GenerateEvent event;
    while (reader->Read(&event)) {
      if (event.has_token()) out.push_back(event.token().logprob());
    }
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return out;
  }

  v1::GenerateRequest Request(int length, v1::Mode mode) {
    v1::GenerateRequest request = MakeRequest({}, 16, mode);
    // Runs of ordinary words' ids; what they say does not matter here.
    for (int i = 0; i < length; ++i) request.add_prompt_ids(300 + (i * 7919 + length) % 20000);
    request.set_model_fingerprint(decode_->Info().model_fingerprint());
    return request;
  }

  bool wrap_ = false;
  channel::FaultOptions faults_;  // with `wrap_`: what the link does
  std::unique_ptr<PrefillServer> prefill_;
  std::unique_ptr<DecodeServer> decode_;
  std::unique_ptr<v1::Decode::Stub> stub_;
};

// 69 MB of KV take 17 s over this link.
class SlowPairModelTest : public PairModelTest {
 protected:
  void SetUp() override {
    wrap_ = true;
    faults_.bandwidth = 4e6;
    PairModelTest::SetUp();
  }
  Result Run(v1::GenerateRequest request) {
    const Result result = RunAnew(std::move(request));
    EXPECT_EQ(result.stats.fallback_reason(), "");
    return result;
  }
};

}  // namespace smartgen::integration
