#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "common/model/known_models.h"
#include "common/model/model.h"
#include "tests/fakes/temp_folder.h"

namespace smartgen::model {
namespace {

using ::testing::HasSubstr;

TEST(ResolveModelPath, AnExistingFileOrFolderIsItself) {
  const fakes::TempFolder folder;
  const std::string file = folder.Write("any.gguf", "x");
  EXPECT_EQ(*ResolveModelPath(file), file);
  EXPECT_EQ(*ResolveModelPath(folder.path()), folder.path());
}

TEST(ResolveModelPath, AKnownNameIsAFileInTheCacheFolder) {
  const fakes::TempFolder folder;
  const std::string file = folder.Write("smollm2-135m.gguf", "x");
  EXPECT_EQ(*ResolveModelPath("smollm2-135m", folder.path()), file);
}

TEST(ResolveModelPath, AKnownNameThatIsNotFetchedNamesTheCommand) {
  const fakes::TempFolder folder;
  const auto path = ResolveModelPath("smollm2-135m", folder.path());
  EXPECT_EQ(path.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(base::MessageOf(path.status())),
              HasSubstr("smartgen fetch-model smollm2-135m --dir " + folder.path()));
}

TEST(ResolveModelPath, TheCacheFolderComesFromTheEnvironment) {
  const fakes::TempFolder folder;
  const std::string file = folder.Write("smollm2-135m.gguf", "x");
  const char* old = getenv("SMARTGEN_CACHE");
  const std::string saved = old == nullptr ? "" : old;
  setenv("SMARTGEN_CACHE", folder.path().c_str(), 1);
  const auto path = ResolveModelPath("smollm2-135m");
  if (old == nullptr) {
    unsetenv("SMARTGEN_CACHE");
  } else {
    setenv("SMARTGEN_CACHE", saved.c_str(), 1);
  }
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(*path, file);
}

TEST(ResolveModelPath, AnUnknownNameListsTheKnownOnes) {
  const auto path = ResolveModelPath("no-such-model");
  EXPECT_EQ(path.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(base::MessageOf(path.status())), HasSubstr("smollm2-135m"));
  EXPECT_EQ(ResolveModelPath("").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(KnownModels, HaveAChecksumASizeAndALicence) {
  for (const KnownModel& model : kKnownModels) {
    EXPECT_EQ(model.sha256.size(), 64u);
    EXPECT_EQ(model.sha256.find_first_not_of("0123456789abcdef"), std::string_view::npos);
    EXPECT_GT(model.bytes, 0);
    EXPECT_FALSE(model.licence.empty());
    EXPECT_EQ(FindKnownModel(model.name), &model);
  }
  EXPECT_EQ(FindKnownModel("other"), nullptr);
}

}  // namespace
}  // namespace smartgen::model
