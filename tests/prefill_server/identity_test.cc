#include "prefill_server/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rpc/convert.h"

namespace smartgen::prefill_server {
namespace {

using ::testing::HasSubstr;

Identity Ours() {
  Identity ours;
  ours.model_name = "m";
  ours.model_fingerprint = "f1";
  ours.compute = "bf16";
  ours.layout.layers.assign(3, {.kv_heads = 3, .head_dim = 64, .window = 0});
  ours.layout.token_capacity = 8192;
  return ours;
}

v1::Hello Theirs() {
  v1::Hello hello;
  hello.set_wire_version(v1::WIRE_VERSION_CURRENT);
  hello.set_incarnation(5);
  hello.set_instance("127.0.0.1:7200");
  hello.set_model_fingerprint("f1");
  hello.set_compute("bf16");
  rpc::ToProto(Ours().layout, hello.mutable_layout());
  hello.add_transports("tcp");
  return hello;
}

std::string Refusal(const v1::Hello& hello) {
  const absl::Status status = CheckHello(hello, Ours());
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}

TEST(HelloTest, AgreementIsAccepted) { EXPECT_TRUE(CheckHello(Theirs(), Ours()).ok()); }

TEST(HelloTest, EachFieldThatDiffersIsNamedWithBothValues) {
  v1::Hello hello = Theirs();
  hello.set_wire_version(9);
  EXPECT_THAT(Refusal(hello), HasSubstr("wire_version: ours 3, theirs 9"));
  hello = Theirs();
  hello.set_incarnation(0);
  EXPECT_THAT(Refusal(hello), HasSubstr("incarnation"));
  hello = Theirs();
  hello.clear_instance();
  EXPECT_THAT(Refusal(hello), HasSubstr("instance"));
  hello = Theirs();
  hello.set_model_fingerprint("f2");
  EXPECT_THAT(Refusal(hello), HasSubstr("model_fingerprint: ours f1 (m), theirs f2"));
  hello = Theirs();
  hello.set_compute("f32");
  EXPECT_THAT(Refusal(hello), HasSubstr("compute: ours bf16, theirs f32"));
  hello = Theirs();
  hello.mutable_layout()->mutable_layers(1)->set_kv_heads(4);
  EXPECT_THAT(Refusal(hello), HasSubstr("layer 1 kv_heads: ours 3, theirs 4"));
  hello = Theirs();
  hello.set_selector_parameters(0xab);
  EXPECT_THAT(Refusal(hello),
              HasSubstr("selector_parameters: ours 0000000000000000, theirs 00000000000000ab"));
  hello = Theirs();
  hello.clear_transports();
  hello.add_transports("carrier pigeon");
  EXPECT_THAT(Refusal(hello), HasSubstr("transports: ours tcp, theirs carrier pigeon"));
}

TEST(HelloTest, TheFirstTransportOfTheirsThatIsOursIsTaken) {
  v1::Hello hello = Theirs();
  hello.clear_transports();
  hello.add_transports("nccl");
  hello.add_transports("tcp");
  hello.set_nccl_version(22809);
  Identity ours = Ours();
  EXPECT_EQ(*TransportFor(hello, ours), "tcp");
  ours.transports = {"tcp", "nccl"};
  ours.nccl_version = 22809;
  EXPECT_EQ(*TransportFor(hello, ours), "nccl");
}

TEST(HelloTest, N5_AnotherVersionOfNcclIsNotPairedWithOverNccl) {
  v1::Hello hello = Theirs();
  hello.clear_transports();
  hello.add_transports("nccl");
  hello.set_nccl_version(23001);
  Identity ours = Ours();
  ours.transports = {"nccl", "tcp"};
  ours.nccl_version = 22809;
  EXPECT_EQ(TransportFor(hello, ours).status().message(),
            "nccl_version: ours 2.28.9, theirs 2.30.1");
  hello.add_transports("tcp");
  EXPECT_EQ(*TransportFor(hello, ours), "tcp");
}

}  // namespace
}  // namespace smartgen::prefill_server
