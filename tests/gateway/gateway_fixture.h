// A gateway in this process in front of scripted decode instances.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "gateway/gateway.h"
#include "tests/gateway/fake_daemon.h"
#include "tests/gateway/raw_client.h"
#include "tests/gateway/tiny_model.h"

namespace smartgen::gateway::testing {

class GatewayFixture : public ::testing::Test {
 protected:
  // Options that tests change before Start.
  Options options_ = [] {
    Options options;
    options.listen = "127.0.0.1:0";
    options.decode.clear();
    options.io_threads = 2;
    return options;
  }();

  FakeDaemon& AddDecode() {
    daemons_.push_back(std::make_unique<FakeDaemon>());
    options_.decode.push_back(daemons_.back()->address());
    return *daemons_.back();
  }
  void Start() {
    if (options_.decode.empty()) AddDecode();
    auto gateway = Gateway::Start(options_, TinyModel(), metrics_.get(), base::Clock::Real());
    ASSERT_TRUE(gateway.ok()) << gateway.status();
    gateway_ = std::move(*gateway);
  }
  FakeDaemon& decode(size_t i = 0) { return *daemons_[i]; }
  int port() const { return gateway_->port(); }

  RawResponse Chat(const std::string& extra = "", const std::string& content = "hi") {
    return Post(port(), "/v1/chat/completions", ChatBody(extra, content));
  }
  RawResponse Complete(const std::string& body) { return Post(port(), "/v1/completions", body); }
  static std::string ChatBody(const std::string& extra = "", const std::string& content = "hi") {
    return R"({"messages":[{"role":"user","content":")" + content + "\"}]" +
           (extra.empty() ? "" : "," + extra) + "}";
  }
  double Fallbacks(const std::string& reason) {
    return metrics_->GetCounter("fallback_total", {{"reason", reason}}).value();
  }

  std::unique_ptr<metrics::Metrics> metrics_ = metrics::Metrics::Create("gateway");
  std::vector<std::unique_ptr<FakeDaemon>> daemons_;
  std::unique_ptr<Gateway> gateway_;
};

}  // namespace smartgen::gateway::testing
