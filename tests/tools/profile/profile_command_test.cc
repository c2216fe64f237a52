// The commands from end to end, on a tiny model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/selector/dtype.h"
#include "common/selector/parameters.h"
#include "common/transfer/profile.h"
#include "tests/fakes/temp_folder.h"
#include "tests/tools/profile/tiny_model.h"
#include "tools/command.h"
#include "tools/profile/selection_run.h"
#include "tools/profile/texts.h"

namespace smartgen::tools::profile {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

class ProfileCommandTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    temp_ = std::make_unique<fakes::TempFolder>();
    folder_ = temp_->path();
    model_ = MakeTinyModel(folder_);
    for (int i = 0; i < 3; ++i) {
      std::ofstream out(Text(i));
      for (int j = 0; j < 400; ++j) out << (j * (7 + i) % 23) * 31 << " of " << j % (5 + i) << "; ";
    }
  }
  static void TearDownTestSuite() { temp_.reset(); }
  static std::string Text(int i) { return folder_ + "/text" + std::to_string(i); }
  static std::string File(const std::string& name) { return folder_ + "/" + name; }
  static int Run(Args args) {
    if (args.empty() || args[0] != "show") args.insert(args.end(), {"--model", model_});
    return Profile(args);
  }
  // Selections of the last 8 tokens of text 0 after a prompt of 700.
  static std::vector<std::pair<int, selector::Selection>> Selections(selector::Kind kind) {
    const auto model = model::Model::Open(model_);
    EXPECT_TRUE(model.ok()) << model.status();
    SelectionRun::Options options;
    options.selector.kind = kind;
    options.executor.compute = executor::ComputeType::kF32;
    options.max_prompt_tokens = 700;
    options.steps = 8;
    const auto run = SelectionRun::Create(**model, options);
    EXPECT_TRUE(run.ok()) << run.status();
    std::vector<std::pair<int, selector::Selection>> out;
    const absl::Status status =
        (*run)->Run(TextIds(), [&](int layer, const selector::Selection& s) {
          out.push_back({layer, s});
        });
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }
  static std::vector<executor::TokenId> TextIds() {
    std::vector<executor::TokenId> ids;
    for (const unsigned char c : ReadFile(Text(0)).substr(0, 708)) ids.push_back(c);
    return ids;
  }

  static inline std::unique_ptr<fakes::TempFolder> temp_;
  static inline std::string folder_;
  static inline std::string model_;
};

TEST_F(ProfileCommandTest, MakesAProfileThatThisModelAloneAccepts) {
  ASSERT_EQ(Run({"--text", Text(0), Text(1), "--lengths", "600,800", "--steps", "4", "--selector",
                 "quest", "--out", File("quest.profile")}),
            0);
  const auto profile = transfer::Profile::Load(File("quest.profile"));
  ASSERT_TRUE(profile.ok()) << profile.status();
  const auto model = model::Model::Open(model_);
  EXPECT_TRUE(profile->CheckFor((*model)->fingerprint(), 4).ok());
  EXPECT_FALSE(profile->CheckFor("another", 4).ok());
  EXPECT_EQ(profile->origin().selector, "quest");
  EXPECT_EQ(profile->origin().model_name, "tiny_model");  // the file names none
  EXPECT_THAT(profile->origin().texts, testing::ElementsAre("text0", "text1"));
  EXPECT_THAT(profile->origin().prompt_lengths, testing::ElementsAre(600, 800));
  EXPECT_THAT(profile->origin().command, testing::Not(HasSubstr(folder_)));
  EXPECT_THAT(profile->origin().command, HasSubstr("--text 2 files"));
  // A fifth of the context is selected, of which the steps' own tokens are a small part.
  double mean = 0;
  for (int block = 0; block < transfer::kBlocks; ++block) {
    mean += profile->Importance(2, block) / transfer::kBlocks;
  }
  EXPECT_GT(mean, 0.15);
  EXPECT_LT(mean, 0.21);

  ASSERT_EQ(Run({"show", File("quest.profile"), "--svg", File("quest.svg")}), 0);
  EXPECT_THAT(ReadFile(File("quest.svg")), HasSubstr("2 texts, prompts of 600, 800 tokens"));
}

TEST_F(ProfileCommandTest, ComparesWithPushingByPositionAndAtRandom) {
  ASSERT_EQ(Run({"--text", Text(0), "--lengths", "600", "--steps", "4", "--selector",
                 "dense-scores", "--out", File("exact.profile")}),
            0);
  ASSERT_EQ(Run({"miss", "--profile", File("exact.profile"), "--text", Text(0), "--lengths", "600",
                 "--steps", "4", "--selector", "dense-scores", "--share", "0.6,1", "--json",
                 File("miss.json")}),
            0);
  const json out = json::parse(ReadFile(File("miss.json")));
  const json& rows = out["on_demand_ratios"];
  ASSERT_EQ(rows.size(), 2u);
  // On the very prompt that it was made from, a profile is the best there is.
  EXPECT_LT(rows[0]["profile"], rows[0]["random"]);
  EXPECT_LT(rows[0]["profile"], rows[0]["sequential"]);
  EXPECT_EQ(rows[1]["profile"], 0);
}

TEST_F(ProfileCommandTest, SaysHowAlikeLengthsAndTextsAre) {
  ASSERT_EQ(Run({"similarity", "--text", Text(0), Text(1), "--lengths", "600,900", "--steps", "2",
                 "--selector", "quest", "--json", File("similarity.json"), "--svg",
                 File("similarity.svg")}),
            0);
  const json out = json::parse(ReadFile(File("similarity.json")));
  ASSERT_EQ(out["comparisons"].size(), 4u);
  EXPECT_EQ(out["comparisons"][0]["pairs"], 2);
  EXPECT_THAT(ReadFile(File("similarity.svg")), HasSubstr("prompts of 900 tokens"));
}

TEST_F(ProfileCommandTest, TrainsParametersThatTheDaemonsCanLoad) {
  const std::string parameters = File("parameters");
  std::filesystem::create_directories(parameters);
  ASSERT_EQ(Run({"--text", Text(0), Text(1), Text(2), "--lengths", "600", "--steps", "2",
                 "--train-hash", parameters + "/" + selector::kHashFile, "--train-skew",
                 parameters + "/" + selector::kSkewFile, "--selector", "hata", "--out",
                 File("hata.profile")}),
            0);
  const auto model = model::Model::Open(model_);
  const auto executor = executor::CreateCpuExecutor(**model, {});
  ASSERT_TRUE(executor.ok());
  const kv::KvLayout layout = (*executor)->Layout(1024);
  const auto loaded =
      selector::LoadParameters(parameters, (*model)->fingerprint(), layout, selector::Options{});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_FALSE(loaded->hash_weights.empty());
  EXPECT_FALSE(loaded->skew.empty());
  EXPECT_EQ(selector::LoadParameters(parameters, "another", layout, {}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(ProfileCommandTest, RefusesWhatCannotBeMeasured) {
  EXPECT_EQ(Run({"--text", Text(0), "--lengths", "600"}), 1);  // nothing to write
  EXPECT_EQ(Run({"--text", File("none"), "--lengths", "600", "--out", File("x")}), 1);
  EXPECT_EQ(Run({"--text", Text(0), "--lengths", "100000", "--out", File("x")}), 1);
  // So short that every layer reads everything.
  EXPECT_EQ(Run({"--text", Text(0), "--lengths", "300", "--out", File("x")}), 1);
  EXPECT_EQ(Run({"show", Text(0)}), 1);
  EXPECT_EQ(Run({"miss", "--text", Text(0), "--lengths", "600"}), 1);  // no profile is built in
  EXPECT_FALSE(std::filesystem::exists(File("x")));
}

TEST_F(ProfileCommandTest, EverySelectorIsAskedInEachLayerThatIsNotDense) {
  for (const auto kind : {selector::Kind::kQuest, selector::Kind::kHata, selector::Kind::kInfiniGen,
                          selector::Kind::kDense}) {
    const auto selections = Selections(kind);
    ASSERT_EQ(selections.size(), 2u * 8) << selector::KindName(kind);
    for (const auto& [layer, selection] : selections) {
      EXPECT_GE(layer, 2);
      EXPECT_GT(selection.k, 0);
      EXPECT_LE(selection.k, (708 / 5 + 16)) << selector::KindName(kind);
    }
  }
}

// Independently: keys and queries of the whole text in one run, every product in double.
TEST_F(ProfileCommandTest, ExactScoresSelectTheTokensOfTheGreatestProducts) {
  const auto selections = Selections(selector::Kind::kDense);
  const auto model = model::Model::Open(model_);
  executor::ExecutorOptions options;
  options.compute = executor::ComputeType::kF32;
  const auto executor = executor::CreateCpuExecutor(**model, options);
  const kv::KvLayout layout = (*executor)->Layout(1024);
  kv::KvPool::Options pool_options;
  pool_options.bytes = 64 * layout.PageBytesTotal();
  const auto pool = kv::KvPool::Create(layout, pool_options);
  kv::KvSequence sequence(pool->get());
  const std::vector<executor::TokenId> ids = TextIds();
  ASSERT_TRUE(sequence.Reserve(708).ok());
  std::vector<std::vector<float>> queries(4);  // of each layer, [8][4 heads][16]
  executor::PrefillChunk chunk{.sequence = &sequence, .tokens = ids};
  chunk.on_queries = [&](int layer, std::span<const float> q, int64_t ld) {
    for (int64_t row = 700; row < 708; ++row) {
      const auto values = q.subspan(row * ld, 64);
      queries[layer].insert(queries[layer].end(), values.begin(), values.end());
    }
  };
  ASSERT_TRUE((*executor)->Prefill(chunk).ok());
  for (size_t i = 0; i < selections.size(); ++i) {
    const auto& [layer, selection] = selections[i];
    const int64_t step = selection.length - 701;
    for (int head = 0; head < 2; ++head) {
      std::vector<double> scores(selection.length - 16);  // the 16 newest are always selected
      for (size_t token = 0; token < scores.size(); ++token) {
        float key[16];
        const std::byte* page = sequence.Page(layer, token / 16);
        selector::LoadRow(page + layout.KOffset(layer, head, token % 16), 16, layout.dtype, key);
        for (int group = 0; group < 2; ++group) {
          const float* q = queries[layer].data() + (step * 4 + head * 2 + group) * 16;
          for (int c = 0; c < 16; ++c) scores[token] += static_cast<double>(q[c]) * key[c];
        }
      }
      std::vector<double> sorted = scores;
      std::sort(sorted.rbegin(), sorted.rend());
      const double least = sorted[selection.k - 16 - 1];
      for (const int32_t token : selection.Row(head).first(selection.k - 16)) {
        // Two that differ by rounding alone may change places.
        EXPECT_GE(scores[token], least - 1e-5) << "layer " << layer << " token " << token;
      }
    }
  }
}

TEST(TextsTest, PromptsComeFromEvenlySpreadPlaces) {
  const fakes::TempFolder made;
  const std::string folder = made.path();
  const auto model = model::Model::Open(MakeTinyModel(folder));
  ASSERT_TRUE(model.ok()) << model.status();
  const auto tokenizer = tokenizer::Tokenizer::Create((*model)->tokenizer_data());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::ofstream(folder + "/abc") << "abcdefghijklmnop";  // 16 tokens
  std::ofstream(folder + "/ab") << "ab";
  CutOptions options;
  options.files = {folder + "/ab", folder + "/abc"};
  options.lengths = {5, 2};
  options.steps = 1;
  options.cuts = 2;
  const auto cuts = CutTexts(**tokenizer, options);
  ASSERT_TRUE(cuts.ok()) << cuts.status();
  ASSERT_EQ(cuts->cuts.size(), 4u);
  const auto text = [&](int i) {
    std::string out;
    for (const auto id : cuts->cuts[i].ids) out += static_cast<char>(id);
    return out;
  };
  EXPECT_EQ(text(0), "cdefgh");  // 10 to spare: a quarter of it before the first
  EXPECT_EQ(text(1), "hijklm");
  EXPECT_EQ(cuts->cuts[2].length, 2);
  EXPECT_EQ(text(2).size(), 3u);
  EXPECT_THAT(cuts->too_short, testing::ElementsAre("ab at 5", "ab at 2"));
  EXPECT_THAT(TextNames(cuts->cuts), testing::ElementsAre("abc"));
}

}  // namespace
}  // namespace smartgen::tools::profile
