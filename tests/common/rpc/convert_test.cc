#include "common/rpc/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rpc/status.h"
#include "proto/common.pb.h"

namespace smartgen::rpc {
namespace {

using ::testing::HasSubstr;

kv::KvLayout SomeLayout() {
  kv::KvLayout layout;
  layout.layers = {{3, 64, 0}, {3, 64, 512}};
  layout.dtype = kv::DType::kF32;
  layout.token_capacity = 8192;
  return layout;
}

TEST(ConvertTest, LayoutsComeBackEqual) {
  v1::KvLayout proto;
  ToProto(SomeLayout(), &proto);
  const auto back = FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(SomeLayout().CheckEqual(*back).ok());
  EXPECT_EQ(back->token_capacity, 8192);
}

TEST(ConvertTest, LayoutsFromOutsideAreChecked) {
  const auto refused = [](const std::function<void(v1::KvLayout&)>& spoil) {
    v1::KvLayout proto;
    ToProto(SomeLayout(), &proto);
    spoil(proto);
    return !FromProto(proto).ok();
  };
  EXPECT_TRUE(refused([](auto& p) { p.set_dtype("f64"); }));
  EXPECT_TRUE(refused([](auto& p) { p.set_page_tokens(32); }));
  EXPECT_TRUE(refused([](auto& p) { p.mutable_layers(0)->set_kv_heads(-1); }));
  EXPECT_TRUE(refused([](auto& p) { p.mutable_layers(1)->set_head_dim(1 << 30); }));
  EXPECT_TRUE(refused([](auto& p) {
    for (int i = 0; i < 2000; ++i) *p.add_layers() = p.layers(0);
  }));
}

TEST(ConvertTest, SamplingParametersComeBackEqual) {
  sampling::SamplingParams params;
  params.temperature = 0.7f;
  params.top_p = 0.9f;
  params.top_k = 40;
  params.min_p = 0.05f;
  params.presence_penalty = -1;
  params.frequency_penalty = 0.5f;
  params.repetition_penalty = 1.1f;
  params.seed = 0xffffffffffffffffULL;
  params.logit_bias = {{5, -100.0f}, {7, 2.5f}};
  params.logprobs = 3;
  params.eos_ids = {2, 0};
  params.min_tokens = 4;
  params.ignore_eos = true;
  params.forced_ids = {9, 3, 9};
  v1::SamplingParams proto;
  ToProto(params, &proto);
  const auto back = FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->temperature, params.temperature);
  EXPECT_EQ(back->top_p, params.top_p);
  EXPECT_EQ(back->top_k, params.top_k);
  EXPECT_EQ(back->min_p, params.min_p);
  EXPECT_EQ(back->presence_penalty, params.presence_penalty);
  EXPECT_EQ(back->frequency_penalty, params.frequency_penalty);
  EXPECT_EQ(back->repetition_penalty, params.repetition_penalty);
  EXPECT_EQ(back->seed, params.seed);
  EXPECT_EQ(back->logit_bias, params.logit_bias);
  EXPECT_EQ(back->logprobs, params.logprobs);
  EXPECT_EQ(back->eos_ids, params.eos_ids);
  EXPECT_EQ(back->min_tokens, params.min_tokens);
  EXPECT_EQ(back->ignore_eos, params.ignore_eos);
  EXPECT_EQ(back->forced_ids, params.forced_ids);
}

TEST(ConvertTest, ListsFromOutsideAreBounded) {
  v1::SamplingParams proto;
  for (int i = 0; i <= kMaxLogitBias; ++i) proto.add_logit_bias();
  EXPECT_THAT(std::string(base::MessageOf(FromProto(proto).status())), HasSubstr("logit_bias"));
  proto.Clear();
  for (int i = 0; i <= kMaxEosIds; ++i) proto.add_eos_ids(i);
  EXPECT_THAT(std::string(base::MessageOf(FromProto(proto).status())), HasSubstr("eos_ids"));
  proto.Clear();
  for (int i = 0; i <= kMaxForcedIds; ++i) proto.add_forced_ids(i);
  EXPECT_THAT(std::string(base::MessageOf(FromProto(proto).status())), HasSubstr("forced_ids"));
}

TEST(ConvertTest, TokensComeBackEqual) {
  const sampling::SampledToken token{42, -0.5f, {{42, -0.5f}, {7, -1.25f}}};
  v1::GeneratedToken proto;
  ToProto(token, &proto);
  const auto back = FromProto(proto);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->id, 42);
  EXPECT_EQ(back->logprob, -0.5f);
  ASSERT_EQ(back->top.size(), 2u);
  EXPECT_EQ(back->top[1].id, 7);
  EXPECT_EQ(back->top[1].logprob, -1.25f);
}

TEST(ConvertTest, TransferIdBytesAreInTheOrderOfTheirHexDigits) {
  const base::TransferId id{0x0102030405060708, 0x090a0b0c0d0e0f10};
  const std::string bytes = TransferIdBytes(id);
  ASSERT_EQ(bytes.size(), 16u);
  EXPECT_EQ(bytes[0], 1);
  EXPECT_EQ(bytes[15], 16);
  const auto back = ParseTransferId(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, id);
}

TEST(ConvertTest, BadTransferIdsAreRefused) {
  EXPECT_FALSE(ParseTransferId("short").ok());
  EXPECT_FALSE(ParseTransferId(std::string(17, 'x')).ok());
  EXPECT_FALSE(ParseTransferId(std::string(16, '\0')).ok());
}

TEST(StatusTest, EveryCodeComesBack) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status = base::MakeStatus(static_cast<absl::StatusCode>(code), "why");
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status) << code;
  }
}

TEST(StatusTest, LongMessagesAreCut) {
  EXPECT_EQ(ToGrpc(base::Internal("{}", std::string(100000, 'x'))).error_message().size(), 4096u);
}

}  // namespace
}  // namespace smartgen::rpc
