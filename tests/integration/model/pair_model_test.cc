// prefilld and decoded with the real executor and the default model.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "common/model/model.h"
#include "tests/integration/pair_harness.h"

namespace smartgen::integration {
namespace {

std::string ModelPath() {
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
    auto prefill_server = PrefillServer::FromModel(prefill);
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

  v1::GenerateRequest Request(int length, v1::Mode mode) {
    v1::GenerateRequest request = MakeRequest({}, 16, mode);
    // Runs of ordinary words' ids; what they say does not matter here.
    for (int i = 0; i < length; ++i) request.add_prompt_ids(300 + (i * 7919 + length) % 20000);
    request.set_model_fingerprint(decode_->Info().model_fingerprint());
    return request;
  }

  std::unique_ptr<PrefillServer> prefill_;
  std::unique_ptr<DecodeServer> decode_;
  std::unique_ptr<v1::Decode::Stub> stub_;
};

TEST_F(PairModelTest, FullModeMakesTheTokensOfLocalMode) {
  for (const int length : {1, 40, 300}) {
    const Result local = Call(stub_.get(), Request(length, v1::MODE_LOCAL)).Wait();
    ASSERT_TRUE(local.status.ok()) << local.status.error_message();
    decode_->prefix_cache().Clear();
    const Result full = Call(stub_.get(), Request(length, v1::MODE_FULL)).Wait();
    ASSERT_TRUE(full.status.ok()) << full.status.error_message();
    EXPECT_EQ(full.stats.mode(), v1::MODE_FULL) << full.stats.fallback_reason();
    EXPECT_EQ(full.stats.transfer_bytes(),
              static_cast<uint64_t>(length * decode_->pool().layout().TokenBytes()));
    EXPECT_EQ(full.tokens, local.tokens) << length;
    // And again, now with prefix hits on both sides.
    EXPECT_EQ(Call(stub_.get(), Request(length, v1::MODE_FULL)).Wait().tokens, local.tokens)
        << length;
  }
}

}  // namespace
}  // namespace smartgen::integration
