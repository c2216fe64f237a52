#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <fstream>

#include "common/config/binder.h"
#include "common/config/version.h"
#include "tests/fakes/temp_folder.h"

namespace smartgen::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using namespace std::chrono_literals;

struct Options {
  std::string listen = "127.0.0.1:7100";
  int64_t kv_bytes = int64_t{4} << 30;
  int threads = 0;
  double ratio = 0.5;
  bool checksum = true;
  std::vector<std::string> prefill;
  base::Duration lease = 30s;
  std::string token;
  std::string level = "info";
  std::string data_listen = "127.0.0.1:7101";
  absl::Status check;

  void Bind(Binder& b) {
    b.Field("listen", &listen, "gRPC address, host:port");
    b.Bytes("kv_bytes", &kv_bytes, "memory for KV pages");
    b.Field("threads", &threads, "0: one a core");
    b.Field("ratio", &ratio, "share");
    b.Field("checksum", &checksum, "guards the wire");
    b.Field("prefill", &prefill, "prefill instances");
    b.Time("lease", &lease, "how long pages are held");
    b.Secret("token", &token, "shared secret");
    b.Section("log", [&](Binder& s) {
      s.Choice("level", &level, {"debug", "info", "warn"}, "what is written");
    });
    b.Section("data", [&](Binder& s) { s.Field("listen", &data_listen, "address for KV"); });
    b.Check([this] { return check; });
  }
};

class ConfigTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = dir_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }

  absl::StatusOr<LoadResult> LoadWith(
      std::vector<std::string> args,
      std::vector<std::pair<std::string, std::string>> environment = {}) {
    Source source;
    source.program = "prefilld";
    source.about = "runs prompts";
    source.args = std::move(args);
    source.environment = std::move(environment);
    source.use_process_environment = false;
    return Load(source, [this](Binder& b) { options_.Bind(b); });
  }

  // Loads the YAML text; the file's path is in the errors as "FILE".
  std::string YamlError(const std::string& yaml) {
    const std::string path = Write("c.yaml", yaml);
    const auto result = LoadWith({"--config", path});
    if (result.ok()) return "";
    std::string message(base::MessageOf(result.status()));
    for (size_t at; (at = message.find(path)) != std::string::npos;) {
      message.replace(at, path.size(), "FILE");
    }
    return message;
  }

  std::string FlagError(std::vector<std::string> args) {
    const auto result = LoadWith(std::move(args));
    return result.ok() ? "" : std::string(base::MessageOf(result.status()));
  }

  fakes::TempFolder folder_;
  std::string dir_ = folder_.path();
  Options options_;
};

TEST_F(ConfigTest, DefaultsStayWhereNothingIsGiven) {
  ASSERT_TRUE(LoadWith({}).ok());
  EXPECT_EQ(options_.listen, "127.0.0.1:7100");
  EXPECT_EQ(options_.lease, 30s);
}

TEST_F(ConfigTest, EnvironmentOverridesFileAndFlagsOverrideBoth) {
  const std::string path =
      Write("c.yaml", "listen: file:1\nthreads: 1\nlog:\n  level: debug\ndata: {listen: file:2}\n");
  ASSERT_TRUE(LoadWith({"--config=" + path, "--listen", "flag:1"},
                       {{"SMARTGEN_LISTEN", "environment:1"}, {"SMARTGEN_LOG_LEVEL", "warn"}})
                  .ok());
  EXPECT_EQ(options_.listen, "flag:1");
  EXPECT_EQ(options_.level, "warn");
  EXPECT_EQ(options_.threads, 1);
  EXPECT_EQ(options_.data_listen, "file:2");
}

TEST_F(ConfigTest, TheFileMayBeNamedByTheEnvironment) {
  const std::string path = Write("c.yaml", "threads: 3\n");
  ASSERT_TRUE(LoadWith({}, {{"SMARTGEN_CONFIG", path}}).ok());
  EXPECT_EQ(options_.threads, 3);
}

TEST_F(ConfigTest, AFlagMayBeSpelledWithDotsDashesOrUnderscores) {
  ASSERT_TRUE(LoadWith({"--data.listen=a:1"}).ok());
  EXPECT_EQ(options_.data_listen, "a:1");
  ASSERT_TRUE(LoadWith({"--data-listen=b:1", "--kv-bytes=1KiB"}).ok());
  EXPECT_EQ(options_.data_listen, "b:1");
  EXPECT_EQ(options_.kv_bytes, 1024);
}

TEST_F(ConfigTest, ABareFlagSetsABoolAndTakesNoValue) {
  ASSERT_TRUE(LoadWith({"--checksum=false"}).ok());
  EXPECT_FALSE(options_.checksum);
  const auto result = LoadWith({"--checksum", "rest"});
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(options_.checksum);
  EXPECT_THAT(result->positional, ElementsAre("rest"));
}

TEST_F(ConfigTest, AnUnknownKeyIsNamedWithItsLineAndTheNearestKnownOne) {
  EXPECT_EQ(YamlError("threads: 1\nlissten: a:1\n"),
            "FILE:2: unknown key lissten; did you mean listen?");
  EXPECT_EQ(YamlError("log:\n  levle: info\n"),
            "FILE:2: unknown key log.levle; did you mean log.level?");
}

TEST_F(ConfigTest, AKeyInTheWrongSectionIsSuggestedWhereItBelongs) {
  EXPECT_THAT(YamlError("level: info\n"), HasSubstr("did you mean log.level?"));
}

TEST_F(ConfigTest, AnUnknownKeyWithNothingNearGetsNoSuggestion) {
  EXPECT_EQ(YamlError("zzzzzzzzzzzz: 1\n"), "FILE:1: unknown key zzzzzzzzzzzz");
}

TEST_F(ConfigTest, AnUnknownFlagNamesTheNearestKnownOne) {
  EXPECT_EQ(FlagError({"--thread=1"}),
            "--thread: prefilld has no such flag; did you mean threads? (see --help)");
}

TEST_F(ConfigTest, AnUnknownEnvironmentNameIsAnErrorUnlessItIsKnownOtherwise) {
  const auto result = LoadWith({}, {{"SMARTGEN_THREDS", "1"}});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(base::MessageOf(result.status()),
            "environment variable SMARTGEN_THREDS: no key of prefilld has this name; did you mean "
            "threads?");
  EXPECT_TRUE(LoadWith({}, {{"SMARTGEN_CACHE", "/x"}, {"OTHER", "1"}}).ok());
}

TEST_F(ConfigTest, TheProcessEnvironmentIsReadWhereAsked) {
  setenv("SMARTGEN_THREADS", "7", 1);
  Source source;
  source.program = "prefilld";
  const auto result = Load(source, [this](Binder& b) { options_.Bind(b); });
  unsetenv("SMARTGEN_THREADS");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(options_.threads, 7);
}

TEST_F(ConfigTest, TimesNeedAUnit) {
  ASSERT_TRUE(LoadWith({"--lease=250ms"}).ok());
  EXPECT_EQ(options_.lease, 250ms);
  ASSERT_TRUE(LoadWith({"--lease=1.5h"}).ok());
  EXPECT_EQ(options_.lease, 90min);
  EXPECT_THAT(FlagError({"--lease=30"}), HasSubstr("--lease: lease: want a time with its unit"));
  EXPECT_THAT(FlagError({"--lease=-1s"}), HasSubstr("got \"-1s\""));
  EXPECT_THAT(FlagError({"--lease=99999999999h"}), HasSubstr("want a time"));
}

TEST_F(ConfigTest, BytesTakeBinaryAndDecimalUnits) {
  const std::vector<std::pair<std::string, int64_t>> cases = {{"512MiB", 512LL << 20},
                                                              {"4GiB", 4LL << 30},
                                                              {"1000000", 1000000},
                                                              {"1.5KiB", 1536},
                                                              {"2GB", 2000000000}};
  for (const auto& [text, want] : cases) {
    ASSERT_TRUE(LoadWith({"--kv_bytes=" + text}).ok()) << text;
    EXPECT_EQ(options_.kv_bytes, want) << text;
  }
  for (const char* bad : {"4G", "-1", "", "1e3", "99999999TiB", "MiB"}) {
    EXPECT_THAT(FlagError({std::string("--kv_bytes=") + bad}), HasSubstr("want a number of bytes"));
  }
}

TEST_F(ConfigTest, NumbersMustBeWholeAndInRange) {
  EXPECT_THAT(FlagError({"--threads=2.5"}), HasSubstr("threads: want a whole number"));
  EXPECT_THAT(FlagError({"--threads=3000000000"}), HasSubstr("from -2147483648 to 2147483647"));
  EXPECT_THAT(FlagError({"--ratio=nan"}), HasSubstr("ratio: want a number"));
  EXPECT_THAT(FlagError({"--threads=1x"}), HasSubstr("got \"1x\""));
  ASSERT_TRUE(LoadWith({"--threads", "-1"}).ok());
  EXPECT_EQ(options_.threads, -1);
}

TEST_F(ConfigTest, AChoiceListsWhatThereIs) {
  EXPECT_EQ(YamlError("log:\n  level: loud\n"),
            "FILE:2: log.level: want one of debug, info, warn, got \"loud\"");
}

TEST_F(ConfigTest, ListsComeAsSequencesOrCommaSeparated) {
  ASSERT_TRUE(LoadWith({"--config", Write("c.yaml", "prefill: [a:1, b:2]\n")}).ok());
  EXPECT_THAT(options_.prefill, ElementsAre("a:1", "b:2"));
  ASSERT_TRUE(LoadWith({}, {{"SMARTGEN_PREFILL", "c:1, d:2"}}).ok());
  EXPECT_THAT(options_.prefill, ElementsAre("c:1", "d:2"));
  ASSERT_TRUE(LoadWith({"--prefill=e:1", "--prefill", "f:2"}).ok());
  EXPECT_THAT(options_.prefill, ElementsAre("e:1", "f:2"));
  ASSERT_TRUE(LoadWith({"--prefill="}).ok());
  EXPECT_THAT(options_.prefill, IsEmpty());
  EXPECT_THAT(YamlError("prefill: a:1\n"), HasSubstr("FILE:1: prefill: want a list"));
  EXPECT_THAT(FlagError({"--prefill=a,,b"}), HasSubstr("empty item"));
}

TEST_F(ConfigTest, SecretsAreMaskedInEveryOutput) {
  const auto printed = LoadWith({"--token=hunter2", "--print-config"});
  ASSERT_TRUE(printed.ok());
  EXPECT_THAT(printed->text, Not(HasSubstr("hunter2")));
  EXPECT_THAT(printed->text, HasSubstr("token: \"***\""));
  options_.token = "hunter2";
  const auto help = LoadWith({"--help"});
  ASSERT_TRUE(help.ok());
  EXPECT_THAT(help->text, Not(HasSubstr("hunter2")));
}

TEST_F(ConfigTest, ASecretMayComeFromAFileOnEveryLevel) {
  const std::string secret = Write("secret", "  hunter2\n");
  ASSERT_TRUE(LoadWith({"--token_file", secret}).ok());
  EXPECT_EQ(options_.token, "hunter2");
  options_.token.clear();
  ASSERT_TRUE(LoadWith({}, {{"SMARTGEN_TOKEN_FILE", secret}}).ok());
  EXPECT_EQ(options_.token, "hunter2");
  options_.token.clear();
  EXPECT_EQ(YamlError("token_file: " + secret + "\n"), "");
  EXPECT_EQ(options_.token, "hunter2");
}

TEST_F(ConfigTest, ASecretAndItsFileTogetherAreRefused) {
  const std::string secret = Write("secret", "x");
  EXPECT_THAT(FlagError({"--token=a", "--token_file", secret}), HasSubstr("give one of token"));
  EXPECT_THAT(YamlError("token: a\ntoken_file: " + secret + "\n"), HasSubstr("give one of token"));
}

TEST_F(ConfigTest, AMaskedSecretIsNotASecret) {
  EXPECT_THAT(YamlError("token: \"***\"\n"), HasSubstr("--print-config shows"));
}

TEST_F(ConfigTest, AMissingOrEmptySecretFileIsNamed) {
  EXPECT_THAT(FlagError({"--token_file=/none/such"}), HasSubstr("/none/such"));
  const std::string empty = Write("empty", "\n");
  EXPECT_THAT(FlagError({"--token_file", empty}), HasSubstr(empty + " is empty"));
}

TEST_F(ConfigTest, WhatPrintConfigShowsLoadsToTheSameConfiguration) {
  const auto first = LoadWith({"--listen=odd \"host\\name\"\n:1", "--lease=90s", "--kv_bytes=3MiB",
                               "--prefill=a:1,b:2", "--log.level=warn", "--ratio=0.1",
                               "--checksum=false", "--print-config"});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(first->exit_now);
  options_ = Options();
  const auto second = LoadWith({"--config", Write("c.yaml", first->text), "--print-config"});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->text, first->text);
  EXPECT_EQ(options_.listen, "odd \"host\\name\"\n:1");
  EXPECT_EQ(options_.kv_bytes, 3 << 20);
}

TEST_F(ConfigTest, HelpNamesEveryKeyWithItsDefault) {
  const auto result = LoadWith({"--help"});
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->exit_now);
  EXPECT_THAT(result->text,
              HasSubstr("--kv_bytes=BYTES\n      memory for KV pages (default: 4GiB)"));
  EXPECT_THAT(result->text, HasSubstr("--log.level=debug|info|warn"));
}

TEST_F(ConfigTest, VersionSaysProgramAndVersion) {
  const auto result = LoadWith({"--version"});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->text, "prefilld " + std::string(SoftwareVersion()) + "\n");
}

TEST_F(ConfigTest, ChecksAcrossKeysRunLastAndForPrintConfigToo) {
  options_.check = base::InvalidArgument("a contradicts b");
  EXPECT_EQ(FlagError({"--print-config"}), "a contradicts b");
  EXPECT_TRUE(LoadWith({"--help"}).ok());
}

TEST_F(ConfigTest, BrokenYamlIsReportedWithItsLine) {
  EXPECT_THAT(YamlError("threads: 1\nlog: {level: [\n"), HasSubstr("FILE:"));
  EXPECT_THAT(YamlError("threads: 1\nlog: {level: [\n"), HasSubstr("not YAML"));
  EXPECT_THAT(YamlError("- a\n- b\n"), HasSubstr("want keys with values"));
  EXPECT_THAT(YamlError("a: 1\n---\nb: 2\n"), HasSubstr("one YAML document, got more"));
  // Found by fuzzing: yaml-cpp's LoadAll never ends on it.
  EXPECT_THAT(YamlError("s: &a {numbbe:: 1}\n--- \n,ist: [*e:: 1}\n--- \nlist: [*a]\n"),
              HasSubstr("YAML"));
}

TEST_F(ConfigTest, AKeyGivenTwiceIsRefused) {
  EXPECT_EQ(YamlError("threads: 1\nthreads: 2\n"), "FILE:2: threads is given twice");
}

TEST_F(ConfigTest, AValueOfTheWrongShapeIsRefused) {
  EXPECT_THAT(YamlError("threads: [1]\n"), HasSubstr("FILE:1: threads: want a whole number"));
  EXPECT_THAT(YamlError("threads:\n"), HasSubstr("got nothing"));
  EXPECT_EQ(YamlError("log: 3\n"), "FILE:1: log is a section: want keys below it");
}

TEST_F(ConfigTest, AnEmptyFileOrSectionChangesNothing) {
  EXPECT_EQ(YamlError(""), "");
  EXPECT_EQ(YamlError("log:\n#  level: info\n"), "");
}

TEST_F(ConfigTest, AFileThatIsMissingOrTooLongIsRefused) {
  EXPECT_THAT(FlagError({"--config=/none/such.yaml"}), HasSubstr("--config: cannot read /none"));
  EXPECT_THAT(YamlError(std::string(2 << 20, '#')), HasSubstr("longer than"));
}

TEST_F(ConfigTest, AFlagWithoutItsValueIsRefused) {
  EXPECT_EQ(FlagError({"--listen"}), "--listen: want a value (--listen=VALUE)");
  EXPECT_EQ(FlagError({"--listen", "--checksum"}), "--listen: want a value (--listen=VALUE)");
}

TEST_F(ConfigTest, EverythingAfterTwoDashesIsPositional) {
  const auto result = LoadWith({"a", "--", "--listen"});
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result->positional, ElementsAre("a", "--listen"));
}

TEST(ConfigBindTest, TwoKeysWithOneEnvironmentNameAreABugThatIsReported) {
  int a = 0;
  int b = 0;
  Source source;
  source.use_process_environment = false;
  const auto result = Load(source, [&](Binder& binder) {
    binder.Field("a_b", &a, "");
    binder.Section("a", [&](Binder& s) { s.Field("b", &b, ""); });
  });
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace smartgen::config
