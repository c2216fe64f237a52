// run: one generation in one process, for debugging a deployment and for independent checks.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <numeric>
#include <optional>
#include <sstream>

#include "common/base/clock.h"
#include "common/executor/backend/backend.h"
#include "common/sampling/sampler.h"
#include "tools/command.h"
#include "tools/local_model.h"

namespace smartgen::tools {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<executor::TokenId>;

struct Options {
  std::string model;
  std::string prompt;
  std::string prompt_file;
  std::string token_ids;
  bool special = false;
  bool ignore_eos = false;
  bool json = false;
  int64_t max_tokens = 64;
  std::string compute = "auto";
  int threads = 0;
  int max_prefill_tokens = 2048;
  executor::BackendOptions backend;

  void Bind(config::Binder& b) {
    b.Field("model", &model, "GGUF file, safetensors folder or known name");
    b.Field("prompt", &prompt, "the prompt itself");
    b.Field("prompt-file", &prompt_file, "file with the prompt's text; - is standard input");
    b.Field("token-ids", &token_ids, "file with a JSON array of token ids; - is standard input");
    b.Field("special", &special, "special-token text in the prompt becomes special tokens");
    b.Field("max-tokens", &max_tokens, "tokens to generate at most");
    b.Field("ignore-eos", &ignore_eos, "go on after an end-of-text token");
    backend.Bind(b);
    b.Choice("compute", &compute, {"auto", "f32", "bf16"}, "what products are computed in");
    b.Field("threads", &threads, "0: one a core");
    b.Field("max_prefill_tokens", &max_prefill_tokens, "longer prompts are run in chunks");
    b.Field("json", &json, "print one JSON object with ids, logits, NLL and timings");
    b.Check([this]() -> absl::Status {
      const int given = !prompt.empty() + !prompt_file.empty() + !token_ids.empty();
      if (given != 1) {
        return base::InvalidArgument("give one of --prompt, --prompt-file and --token-ids");
      }
      if (max_tokens < 0) return base::InvalidArgument("max-tokens: want at least 0");
      return backend.Check();
    });
  }
};

absl::StatusOr<std::string> ReadAll(const std::string& path) {
  constexpr size_t kMaxPromptBytes = 64 << 20;
  std::ostringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
  } else {
    std::ifstream in(path, std::ios::binary);
    if (!in) return base::NotFound("cannot read {}", path);
    text << in.rdbuf();
  }
  if (text.view().size() > kMaxPromptBytes) {
    return base::InvalidArgument("{} is longer than {} bytes", path, kMaxPromptBytes);
  }
  return std::move(text).str();
}

absl::StatusOr<Ids> PromptIds(const Options& options, const tokenizer::Tokenizer& tokenizer) {
  Ids ids;
  if (!options.token_ids.empty()) {
    ASSIGN_OR_RETURN(const std::string text, ReadAll(options.token_ids));
    const auto json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    ASSIGN_OR_RETURN(ids, ParseIds(json, tokenizer.vocab_size()));
  } else {
    std::string text = options.prompt;
    if (!options.prompt_file.empty()) {
      ASSIGN_OR_RETURN(text, ReadAll(options.prompt_file));
    }
    if (tokenizer.add_bos() && tokenizer.bos_id()) ids.push_back(*tokenizer.bos_id());
    const Ids encoded = tokenizer.Encode(text, options.special);
    ids.insert(ids.end(), encoded.begin(), encoded.end());
  }
  if (ids.empty()) return base::InvalidArgument("the prompt has no tokens");
  return ids;
}

// -log softmax(logits)[id], in double.
double NegativeLogLikelihood(std::span<const float> logits, executor::TokenId id) {
  const double max = *std::max_element(logits.begin(), logits.end());
  const double sum = std::accumulate(logits.begin(), logits.end(), 0.0, [&](double s, float v) {
    return s + std::exp(static_cast<double>(v) - max);
  });
  return max + std::log(sum) - static_cast<double>(logits[static_cast<size_t>(id)]);
}

class Runner {
 public:
  static absl::StatusOr<Runner> Make(const Options& options, const model::Model& model,
                                     int64_t tokens) {
    executor::ExecutorOptions executor_options;
    ASSIGN_OR_RETURN(executor_options.compute, executor::ParseComputeType(options.compute));
    executor_options.threads = options.threads;
    executor_options.max_prefill_tokens = options.max_prefill_tokens;
    Runner runner;
    ASSIGN_OR_RETURN(runner.executor_,
                     executor::CreateExecutor(model, executor_options, options.backend,
                                              executor::KvBytesAtMost(model.config(), tokens)));
    runner.max_prefill_tokens_ = options.max_prefill_tokens;
    kv::KvLayout layout = runner.executor_->Layout(tokens);
    kv::KvPool::Options pool;
    pool.bytes = kv::KvPool::PagesFor(tokens) * layout.PageBytesTotal();
    pool.memory = runner.executor_->page_memory();
    ASSIGN_OR_RETURN(runner.pool_, kv::KvPool::Create(std::move(layout), pool));
    return runner;
  }

  const executor::Executor& executor() const { return *executor_; }

  // Logits after the last prompt token. `on_logits` as in PrefillChunk.
  absl::StatusOr<std::vector<float>> Prefill(
      kv::KvSequence& sequence, const Ids& ids,
      const std::function<void(int64_t, std::span<const float>)>& on_logits) {
    std::vector<float> logits(static_cast<size_t>(executor_->config().vocab_size));
    const auto total = static_cast<int64_t>(ids.size());
    RETURN_IF_ERROR(sequence.Reserve(total));
    for (int64_t start = 0; start < total; start += max_prefill_tokens_) {
      const int64_t count = std::min<int64_t>(max_prefill_tokens_, total - start);
      executor::PrefillChunk chunk;
      chunk.sequence = &sequence;
      chunk.start = start;
      chunk.tokens = std::span(ids).subspan(static_cast<size_t>(start), static_cast<size_t>(count));
      chunk.on_logits = on_logits;
      if (start + count == total) chunk.last_logits = logits;
      RETURN_IF_ERROR(executor_->Prefill(chunk));
    }
    return logits;
  }

  absl::Status Step(kv::KvSequence& sequence, int64_t position, executor::TokenId token,
                    std::vector<float>& logits) {
    RETURN_IF_ERROR(sequence.Reserve(position + 1));
    const executor::DecodeSlot slot{&sequence, position, token, logits};
    return executor_->Decode(std::span(&slot, 1));
  }

  kv::KvPool* pool() { return pool_.get(); }

 private:
  Runner() = default;
  std::unique_ptr<executor::Executor> executor_;
  std::unique_ptr<kv::KvPool> pool_;
  int64_t max_prefill_tokens_ = 0;
};

// Mean over positions 1 to n-1; nullopt for one token. A pass of its own, so that the timings of
// the generation are those of a generation.
absl::StatusOr<std::optional<double>> MeanNll(Runner& runner, const Ids& ids) {
  if (ids.size() < 2) return std::nullopt;
  double sum = 0;
  kv::KvSequence sequence(runner.pool());
  const auto status =
      runner.Prefill(sequence, ids, [&](int64_t position, std::span<const float> logits) {
        const auto next = static_cast<size_t>(position) + 1;
        if (next < ids.size()) sum += NegativeLogLikelihood(logits, ids[next]);
      });
  RETURN_IF_ERROR(status.status());
  return sum / static_cast<double>(ids.size() - 1);
}

Json TopLogits(std::span<const float> logits, size_t count) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  count = std::min(count, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](int a, int b) {
                      const float x = logits[static_cast<size_t>(a)];
                      const float y = logits[static_cast<size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  Json top = Json::array();
  for (size_t i = 0; i < count; ++i) {
    top.push_back({order[i], logits[static_cast<size_t>(order[i])]});
  }
  return top;
}

struct Generation {
  Ids ids;
  std::string text;
  Json top_logits;
  double prefill_seconds = 0;
  double decode_seconds = 0;
};

absl::StatusOr<Generation> Generate(Runner& runner, const Options& options, const Ids& prompt,
                                    const tokenizer::Tokenizer& tokenizer) {
  const base::Clock& clock = *base::Clock::Real();
  sampling::SamplingParams params;
  params.temperature = 0;
  params.eos_ids.assign(tokenizer.eos_ids().begin(), tokenizer.eos_ids().end());
  sampling::Sampler sampler(params, prompt);
  tokenizer::IncrementalDetokenizer detokenizer(&tokenizer, /*special=*/false);
  kv::KvSequence sequence(runner.pool());
  Generation out;
  const base::TimePoint begin = clock.Now();
  ASSIGN_OR_RETURN(std::vector<float> logits, runner.Prefill(sequence, prompt, nullptr));
  const base::TimePoint prefilled = clock.Now();
  out.prefill_seconds = base::ToSeconds(prefilled - begin);
  out.top_logits = TopLogits(logits, 10);
  auto position = static_cast<int64_t>(prompt.size());
  const auto emit = [&](const std::string& piece) {
    out.text += piece;
    if (!options.json) {
      std::fputs(piece.c_str(), stdout);
      std::fflush(stdout);
    }
  };
  while (static_cast<int64_t>(out.ids.size()) < options.max_tokens) {
    ASSIGN_OR_RETURN(const auto token, sampler.Sample(logits, position));
    sampler.Accept(token.id);
    out.ids.push_back(token.id);
    if (sampler.IsEos(token.id) && !options.ignore_eos) break;
    emit(detokenizer.Push(token.id));
    if (static_cast<int64_t>(out.ids.size()) == options.max_tokens) break;
    RETURN_IF_ERROR(runner.Step(sequence, position++, token.id, logits));
  }
  emit(detokenizer.Flush());
  out.decode_seconds = base::ToSeconds(clock.Now() - prefilled);
  return out;
}

Json Timings(const Generation& generation, size_t prompt_tokens) {
  const auto rate = [](size_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
  };
  // The first token is the prefill's.
  const size_t steps = generation.ids.empty() ? 0 : generation.ids.size() - 1;
  return Json{{"prefill_seconds", generation.prefill_seconds},
              {"prefill_tokens_per_second", rate(prompt_tokens, generation.prefill_seconds)},
              {"decode_seconds", generation.decode_seconds},
              {"decode_tokens_per_second", rate(steps, generation.decode_seconds)}};
}

absl::Status RunOnce(const Options& options) {
  ASSIGN_OR_RETURN(const Words words, LoadWords(options.model));
  ASSIGN_OR_RETURN(const Ids prompt, PromptIds(options, *words.tokenizer));
  const int64_t tokens = static_cast<int64_t>(prompt.size()) + options.max_tokens;
  const int64_t context = words.file->config().context_length;
  if (tokens > context) {
    return base::InvalidArgument(
        "{} prompt tokens and {} to generate are more than the model's context of {}",
        prompt.size(), options.max_tokens, context);
  }
  ASSIGN_OR_RETURN(Runner runner, Runner::Make(options, *words.file, tokens));
  ASSIGN_OR_RETURN(const Generation generation,
                   Generate(runner, options, prompt, *words.tokenizer));
  const Json timings = Timings(generation, prompt.size());
  if (!options.json) {
    std::fprintf(stderr, "\n[%zu prompt tokens at %.0f/s, %zu generated at %.1f/s, %s]\n",
                 prompt.size(), timings["prefill_tokens_per_second"].get<double>(),
                 generation.ids.size(), timings["decode_tokens_per_second"].get<double>(),
                 std::string(executor::ComputeTypeName(runner.executor().compute())).c_str());
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::optional<double> nll, MeanNll(runner, prompt));
  const Json out = {{"prompt_ids", prompt},
                    {"generated_ids", generation.ids},
                    {"text", generation.text},
                    {"top_logits", generation.top_logits},
                    {"nll", nll ? Json(*nll) : Json()},
                    {"compute", executor::ComputeTypeName(runner.executor().compute())},
                    {"threads", runner.executor().threads()},
                    {"timings", timings}};
  std::printf("%s\n", ToLine(out).c_str());
  return absl::OkStatus();
}

}  // namespace

int Run(const Args& args) {
  Options options;
  const Parsed parsed = ParseFlags("run", args, [&](config::Binder& b) { options.Bind(b); });
  if (!parsed.go_on) return parsed.exit_code;
  const absl::Status status = RunOnce(options);
  return status.ok() ? 0 : Fail("run", status);
}

}  // namespace smartgen::tools
