// bench model: how fast the executor runs a model here.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "common/executor/backend/backend.h"
#include "common/executor/bench.h"
#include "tools/bench/benchmarks.h"
#include "tools/local_model.h"

namespace smartgen::tools::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr Command kCommand = {"bench model", "--model M [--json]",
                              "prefill and decode speed of a model on this machine", nullptr};

// Speed does not hang on the words, but it should be measured on words.
constexpr std::string_view kText =
    "The river rises in the hills behind the town, where two springs join below an old stone wall. "
    "In spring it carries snow water and moves quickly; by August it is a string of pools under "
    "the "
    "willows. The mill stood where the valley narrows. Its owner kept a book in which he wrote the "
    "height of the water each morning, the price of grain, and the names of those who came by the "
    "road. Engineers read that book two hundred years later when they planned the dam, because no "
    "other record reached so far back. ";

struct Options {
  std::string model;
  std::vector<std::string> lengths = {"512", "2048"};
  int decode_tokens = 24;
  int runs = 3;
  std::string compute = "auto";
  int threads = 0;
  int max_prefill_tokens = 2048;
  executor::BackendOptions backend;
  std::string text_file;
  bool json = false;

  void Bind(config::Binder& b) {
    b.Field("model", &model, "GGUF file, safetensors folder or known name");
    b.Field("lengths", &lengths, "prompt lengths in tokens");
    b.Field("decode-tokens", &decode_tokens, "decode steps measured after each prefill");
    b.Field("runs", &runs, "repetitions; medians are shown");
    backend.Bind(b);
    b.Choice("compute", &compute, {"auto", "f32", "bf16"}, "what products are computed in");
    b.Field("threads", &threads, "0: one a core");
    b.Field("max_prefill_tokens", &max_prefill_tokens, "longer prompts are run in chunks");
    b.Field("text", &text_file, "file with the prompt's text; empty: a built-in one");
    b.Field("json", &json, "print one JSON object");
    b.Check([this] { return backend.Check(); });
  }
};

absl::StatusOr<std::vector<int>> ParseLengths(const std::vector<std::string>& texts) {
  constexpr int kMaxLength = 1 << 24;
  std::vector<int> lengths;
  for (const std::string& text : texts) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1 ||
        value > kMaxLength) {
      return base::InvalidArgument("lengths: want numbers from 1 to {}, got \"{}\"", kMaxLength,
                                   text);
    }
    lengths.push_back(value);
  }
  if (lengths.empty()) return base::InvalidArgument("lengths: want at least one");
  return lengths;
}

absl::StatusOr<std::string> Text(const Options& options) {
  if (options.text_file.empty()) return std::string(kText);
  std::ifstream in(options.text_file, std::ios::binary);
  if (!in) return base::NotFound("text: cannot read {}", options.text_file);
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

// What is multiplied with, for shares of what a machine can: of the layers, for each token; of the
// output, for each token whose logits are wanted.
struct Weights {
  int64_t layers = 0;
  int64_t output = 0;
};

Weights WeightsOf(const model::ModelConfig& config) {
  Weights weights;
  for (const model::LayerConfig& layer : config.layers) {
    const int64_t heads = 2LL * layer.num_heads + 2LL * layer.num_kv_heads;  // q, k, v, output
    weights.layers += config.hidden_dim * (heads * layer.head_dim + 3LL * layer.ffn_dim);
  }
  weights.output = int64_t{config.hidden_dim} * config.vocab_size;
  return weights;
}

struct Measured {
  executor::ModelBenchResult result;
  std::string hardware;
  Weights weights;
};

absl::StatusOr<Measured> Measure(const Options& options) {
  executor::ModelBenchOptions bench;
  ASSIGN_OR_RETURN(bench.prompt_lengths, ParseLengths(options.lengths));
  bench.decode_tokens = options.decode_tokens;
  bench.runs = options.runs;
  bench.max_prefill_tokens = options.max_prefill_tokens;
  ASSIGN_OR_RETURN(const Words words, LoadWords(options.model));
  ASSIGN_OR_RETURN(const std::string text, Text(options));
  const auto ids = words.tokenizer->Encode(text, /*parse_special=*/false);
  executor::ExecutorOptions executor_options;
  ASSIGN_OR_RETURN(executor_options.compute, executor::ParseComputeType(options.compute));
  executor_options.threads = options.threads;
  executor_options.max_prefill_tokens = options.max_prefill_tokens;
  const int64_t tokens =
      *std::max_element(bench.prompt_lengths.begin(), bench.prompt_lengths.end()) +
      int64_t{options.decode_tokens} + 1;
  ASSIGN_OR_RETURN(const auto executor,
                   executor::CreateExecutor(*words.file, executor_options, options.backend,
                                            executor::KvBytesAtMost(words.file->config(), tokens)));
  kv::KvLayout layout = executor->Layout(tokens);
  kv::KvPool::Options pool_options;
  pool_options.bytes = kv::KvPool::PagesFor(tokens) * layout.PageBytesTotal();
  pool_options.memory = executor->page_memory();
  ASSIGN_OR_RETURN(const auto pool, kv::KvPool::Create(std::move(layout), pool_options));
  Measured measured;
  ASSIGN_OR_RETURN(measured.result, executor::BenchModel(*executor, *pool, ids, bench));
  ASSIGN_OR_RETURN(measured.hardware, executor::HardwareName(options.backend));
  measured.weights = WeightsOf(executor->config());
  return measured;
}

void Print(const Measured& measured) {
  const executor::ModelBenchResult& result = measured.result;
  std::printf("%s, compute %s, %d threads, %d decode steps\n\n", measured.hardware.c_str(),
              std::string(executor::ComputeTypeName(result.compute)).c_str(), result.threads,
              result.decode_tokens);
  std::printf("%14s %20s %20s\n", "prompt tokens", "prefill tokens/s", "decode tokens/s");
  for (const executor::ModelBenchRow& row : result.rows) {
    std::printf("%14d %20.0f %20.1f\n", row.prompt_tokens, row.prefill_tokens_per_second,
                row.decode_tokens_per_second);
  }
}

void PrintJson(const Measured& measured) {
  const executor::ModelBenchResult& result = measured.result;
  Json rows = Json::array();
  for (const executor::ModelBenchRow& row : result.rows) {
    rows.push_back(Json{{"prompt_tokens", row.prompt_tokens},
                        {"prefill_tokens_per_second", row.prefill_tokens_per_second},
                        {"decode_tokens_per_second", row.decode_tokens_per_second},
                        {"prefill_all", row.prefill_all},
                        {"decode_all", row.decode_all}});
  }
  const Json json = {{"hardware", measured.hardware},
                     {"layer_weights", measured.weights.layers},
                     {"output_weights", measured.weights.output},
                     {"compute", executor::ComputeTypeName(result.compute)},
                     {"threads", result.threads},
                     {"decode_tokens", result.decode_tokens},
                     {"rows", rows}};
  std::printf("%s\n", ToLine(json).c_str());
}

}  // namespace

int Model(const Args& args) {
  Options options;
  const Parsed parsed = ParseFlags(kCommand, args, [&](config::Binder& b) { options.Bind(b); });
  if (!parsed.go_on) return parsed.exit_code;
  const auto result = Measure(options);
  if (!result.ok()) return Fail(kCommand.name, result.status());
  if (options.json) {
    PrintJson(*result);
  } else {
    Print(*result);
  }
  return 0;
}

}  // namespace smartgen::tools::bench
