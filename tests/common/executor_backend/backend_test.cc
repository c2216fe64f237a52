#include "common/executor/backend/backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/base/cpu.h"
#include "common/device/device.h"
#include "common/kv/pool.h"
#include "common/model/model.h"

namespace smartgen::executor {
namespace {

using testing::HasSubstr;

absl::StatusOr<std::unique_ptr<model::Model>> SmallModel() {
  return model::Model::Open(std::string(SMARTGEN_TEST_DATA) + "/arch_llama");
}

std::string Why(const absl::Status& status) { return std::string(base::MessageOf(status)); }

// As a daemon reads them.
absl::Status Load(BackendOptions& options, std::vector<std::string> flags,
                  std::vector<std::pair<std::string, std::string>> environment = {}) {
  const config::Source source{.program = "test",
                              .args = std::move(flags),
                              .environment = std::move(environment),
                              .use_process_environment = false};
  return config::Load(source,
                      [&](config::Binder& b) {
                        options.Bind(b);
                        b.Check([&] { return options.Check(); });
                      })
      .status();
}

TEST(BackendOptions, TheCpuIsTheDefault) {
  BackendOptions options;
  ASSERT_TRUE(Load(options, {}).ok());
  EXPECT_EQ(options.executor, "cpu");
  EXPECT_FALSE(options.UsesCuda());
}

TEST(BackendOptions, EveryKeyIsReadFromFlagsAndEnvironment) {
  BackendOptions options;
  const auto status =
      Load(options, {"--executor=cuda", "--cuda.device=3"},
           {{"SMARTGEN_CUDA_KV_LOCATION", "host"}, {"SMARTGEN_CUDA_MEMORY", "2GiB"}});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(options.UsesCuda());
  EXPECT_EQ(options.device, 3);
  EXPECT_EQ(options.kv_location, "host");
  EXPECT_EQ(options.memory_bytes, int64_t{2} << 30);
}

TEST(BackendOptions, NamesThatNobodyKnowsAreRefusedWithTheKnownOnes) {
  BackendOptions options;
  EXPECT_THAT(Why(Load(options, {"--executor=gpu"})),
              AllOf(HasSubstr("executor"), HasSubstr("cuda"), HasSubstr("gpu")));
  EXPECT_THAT(Why(Load(options, {"--cuda.kv_location=disk"})),
              AllOf(HasSubstr("cuda.kv_location"), HasSubstr("host"), HasSubstr("disk")));
}

TEST(BackendOptions, NumbersOutOfRangeAreNamed) {
  const auto why = [](BackendOptions wrong) { return Why(wrong.Check()); };
  EXPECT_EQ(why({.device = -1}), "cuda.device: want at least 0, got -1");
  EXPECT_EQ(why({.memory_bytes = -5}), "cuda.memory: want at least 0, got -5");
  EXPECT_EQ(why({.executor = "gpu"}), "executor: want cpu or cuda, got \"gpu\"");
  EXPECT_THAT(why({.kv_location = "disk"}), HasSubstr("disk"));
}

TEST(CreateExecutor, TheCpusComputesOnTheCpu) {
  const auto model = SmallModel();
  ASSERT_TRUE(model.ok()) << model.status();
  const auto executor = CreateExecutor(**model, {.compute = ComputeType::kF32}, {}, 0);
  ASSERT_TRUE(executor.ok()) << executor.status();
  EXPECT_GT((*executor)->threads(), 0);
  EXPECT_EQ(*HardwareName({}), base::CpuName());
}

TEST(CreateExecutor, OptionsAreCheckedBeforeAnythingIsMade) {
  const auto model = SmallModel();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(CreateExecutor(**model, {}, {.device = -1}, 0).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(KvBytesAtMost, IsWhatAPoolOfFloatsTakes) {
  const auto model = SmallModel();
  ASSERT_TRUE(model.ok()) << model.status();
  const auto executor = CreateExecutor(**model, {.compute = ComputeType::kF32}, {}, 0);
  ASSERT_TRUE(executor.ok()) << executor.status();
  for (const int64_t tokens : {1, 16, 17, 1000}) {
    EXPECT_EQ(KvBytesAtMost((*model)->config(), tokens),
              kv::KvPool::PagesFor(tokens) * (*executor)->Layout(tokens).PageBytesTotal());
  }
}

TEST(CreateExecutor, ABuildWithoutCudaSaysHowToGetOne) {
  if (Why(device::ListDevices().status()).find("this build has no CUDA") == std::string::npos) {
    GTEST_SKIP() << "this build has CUDA";
  }
  const auto model = SmallModel();
  ASSERT_TRUE(model.ok()) << model.status();
  const absl::Status status = CreateExecutor(**model, {}, {.executor = "cuda"}, 1 << 20).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Why(status), AllOf(HasSubstr("executor cuda"), HasSubstr("cuda preset")));
  EXPECT_EQ(HardwareName({.executor = "cuda"}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace smartgen::executor
