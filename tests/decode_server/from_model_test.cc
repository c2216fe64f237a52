#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "decode_server/server.h"

namespace smartgen::decode_server {
namespace {

Options SmallModel() {
  Options options;
  options.model = std::string(SMARTGEN_TEST_DATA) + "/arch_llama";
  options.listen = "127.0.0.1:0";
  options.metrics_listen.clear();
  options.kv_bytes = 1 << 20;
  return options;
}

TEST(FromModel, TheCpuRunsTheModelUnlessToldOtherwise) {
  const auto server = DecodeServer::FromModel(SmallModel());
  EXPECT_TRUE(server.ok()) << server.status();
}

TEST(FromModel, WhatDoesNotMakeAnExecutorStopsTheDaemonBeforeItListens) {
  Options options = SmallModel();
  options.backend.executor = "cuda";
  // There is no such device anywhere; in a build without CUDA there is none at all.
  options.backend.device = 1 << 20;
  const absl::Status status = DecodeServer::FromModel(options).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(base::MessageOf(status)), testing::HasSubstr("CUDA"));
}

}  // namespace
}  // namespace smartgen::decode_server
