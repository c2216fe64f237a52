// calibrate: how fast this machine runs a model, and the way from its prefill instances, as a file
// that prefilld and decoded load.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/executor/backend/backend.h"
#include "common/executor/executor.h"
#include "common/model/model.h"
#include "common/rpc/security.h"
#include "common/transfer/calibration.h"
#include "tools/calibration_report.h"
#include "tools/command.h"
#include "tools/local_model.h"
#include "tools/model_timing.h"
#include "tools/peer_probe.h"
#include "tools/progress.h"

namespace smartgen::tools {
namespace {

using transfer::Calibration;

constexpr int kMemoryShare = 4;
constexpr base::Duration kProbeTimeout = std::chrono::seconds(20);

struct Options {
  std::string model;
  std::string compute = "auto";
  int threads = 0;
  int max_prefill_tokens = 2048;
  executor::BackendOptions backend;
  int64_t max_tokens = 4096;
  int max_batch = 8;
  int runs = 3;
  int64_t kv_bytes = 0;
  std::vector<std::string> peers;
  rpc::Security security;
  std::string out = "calibration.pb";
  bool allow_noise = false;
  bool json = false;

  void Bind(config::Binder& b) {
    b.Field("model", &model, "GGUF file, safetensors folder or known name");
    backend.Bind(b);
    b.Choice("compute", &compute, {"auto", "f32", "bf16"}, "as the daemon is run");
    b.Field("threads", &threads, "as the daemon is run; 0: one a core");
    b.Field("max_prefill_tokens", &max_prefill_tokens, "as the daemon is run");
    b.Field("max-tokens", &max_tokens, "longest prompt measured; longer ones are extrapolated");
    b.Field("max-batch", &max_batch, "largest decode batch measured");
    b.Field("runs", &runs, "repetitions; medians count");
    b.Bytes("kv-bytes", &kv_bytes, "memory for KV pages; 0: a quarter of what is available");
    b.Field("peer", &peers, "gRPC address of a prefilld whose way to here is measured; repeatable");
    b.Field("out", &out, "the file to write");
    b.Field("allow-noise", &allow_noise, "write it though it predicts badly");
    b.Field("json", &json, "print one JSON object");
    security.Bind(b);
    b.Check([this] { return Check(); });
  }

  absl::Status Check() const {
    struct Range {
      const char* name;
      int64_t value, min, max;
    };
    const Range ranges[] = {{"threads", threads, 0, 1 << 16},
                            {"max_prefill_tokens", max_prefill_tokens, 1, 1 << 24},
                            {"max-tokens", max_tokens, 64, 1 << 24},
                            {"max-batch", max_batch, 1, 1024},
                            {"runs", runs, 1, 1000},
                            {"kv-bytes", kv_bytes, 0, INT64_MAX}};
    for (const auto& [name, value, min, max] : ranges) {
      if (value < min || value > max) {
        return base::InvalidArgument("{}: want {} to {}, got {}", name, min, max, value);
      }
    }
    if (out.empty()) return base::InvalidArgument("out: want the name of the file to write");
    return backend.Check();
  }

  // What can be repeated; peers and secrets left out.
  std::string Command() const {
    return fmt::format(
        "smartgen calibrate --model {}{} --compute {} --threads {} --max_prefill_tokens {} "
        "--max-tokens {} --max-batch {} --runs {}",
        model, backend.UsesCuda() ? " --executor cuda" : "", compute, threads, max_prefill_tokens,
        max_tokens, max_batch, runs);
  }
};

absl::Status MeasurePeers(const Options& options, Calibration& calibration) {
  for (const std::string& peer : options.peers) {
    std::fprintf(stderr, "measuring the way from %s\n", peer.c_str());
    ASSIGN_OR_RETURN(auto link, ProbePeer(peer, options.security, kProbeTimeout));
    calibration.points.links.push_back(std::move(link));
  }
  return absl::OkStatus();
}

// What KV may take: kv-bytes, or what 0 stands for now.
absl::StatusOr<int64_t> PoolBytes(const Options& options) {
  if (options.kv_bytes > 0) return options.kv_bytes;
  ASSIGN_OR_RETURN(const int64_t available, base::AvailableMemoryBytes());
  return available / kMemoryShare;
}

// The pool for the plan; steps that do not fit into memory are left out.
absl::StatusOr<std::unique_ptr<kv::KvPool>> MakePool(const Options& options,
                                                     const executor::Executor& executor,
                                                     int64_t token_capacity, TimingPlan& plan) {
  ASSIGN_OR_RETURN(const int64_t bytes, PoolBytes(options));
  kv::KvLayout layout = executor.Layout(token_capacity);
  const int64_t room = bytes / layout.PageBytesTotal() * kv::kPageTokens;
  if (const int64_t dropped = Shrink(plan, room); dropped > 0) {
    std::fprintf(stderr, "%lld steps are left out: their KV takes more than %lld MiB (kv-bytes)\n",
                 static_cast<long long>(dropped), static_cast<long long>(bytes >> 20));
  }
  kv::KvPool::Options pool_options;
  pool_options.memory = executor.page_memory();
  pool_options.bytes = kv::KvPool::PagesFor(TokensHeld(plan)) * layout.PageBytesTotal();
  if (pool_options.bytes > bytes) {
    return base::ResourceExhausted(
        "a prompt of {} tokens takes {} MiB of KV, of {} MiB (kv-bytes): ask for fewer max-tokens",
        options.max_tokens, pool_options.bytes >> 20, bytes >> 20);
  }
  return kv::KvPool::Create(std::move(layout), pool_options);
}

absl::StatusOr<transfer::CostPoints> MeasureModel(const Options& options,
                                                  executor::Executor& executor,
                                                  int64_t max_tokens) {
  TimingPlan plan = PlanTiming(max_tokens, options.max_batch);
  ASSIGN_OR_RETURN(const auto pool,
                   MakePool(options, executor, max_tokens + kv::kPageTokens, plan));
  ASSIGN_OR_RETURN(const auto timer,
                   ModelTimer::Create(&executor, pool.get(), options.max_prefill_tokens));
  Progress progress(TimingWork(plan, options.runs));
  TimingEvents events;
  events.begin = [&](const std::string& what) { progress.Begin(what); };
  events.end = [&](double work) { progress.Advance(work); };
  return MeasureTiming(*timer, plan, options.runs, events);
}

absl::StatusOr<Calibration> Measure(const Options& given) {
  Options options = given;
  Calibration calibration;
  // First, since it is over soon: who has mistyped an address hears of it at once.
  RETURN_IF_ERROR(MeasurePeers(options, calibration));
  ASSIGN_OR_RETURN(const std::string path, model::ResolveModelPath(options.model));
  ASSIGN_OR_RETURN(const auto model, model::Model::Open(path));
  executor::ExecutorOptions executor_options;
  ASSIGN_OR_RETURN(executor_options.compute, executor::ParseComputeType(options.compute));
  executor_options.threads = options.threads;
  executor_options.max_prefill_tokens = options.max_prefill_tokens;
  executor_options.max_decode_batch = options.max_batch;
  // As the daemons do it: a GPU's executor wants to know the pool, the CPU's is made before it.
  if (options.backend.UsesCuda()) {
    ASSIGN_OR_RETURN(options.kv_bytes, PoolBytes(options));
  }
  ASSIGN_OR_RETURN(
      const auto executor,
      executor::CreateExecutor(*model, executor_options, options.backend, options.kv_bytes));
  ASSIGN_OR_RETURN(const std::string hardware, executor::HardwareName(options.backend));
  const int64_t max_tokens = std::min(options.max_tokens, executor->config().context_length);
  ASSIGN_OR_RETURN(auto points, MeasureModel(options, *executor, max_tokens));
  points.links = std::move(calibration.points.links);
  calibration.points = std::move(points);
  const kv::KvLayout layout = executor->Layout(max_tokens);
  calibration.subject = {.model_fingerprint = model->fingerprint(),
                         .compute = std::string(executor::ComputeTypeName(executor->compute())),
                         .cpu = hardware,
                         .threads = executor->threads()};
  calibration.model_name = model->config().name.empty() ? options.model : model->config().name;
  calibration.max_prefill_tokens = options.max_prefill_tokens;
  calibration.layers = layout.num_layers();
  calibration.kv_bytes_per_token = layout.TokenBytes();
  calibration.command = options.Command();
  calibration.unix_seconds = base::Clock::Real()->UnixSeconds();
  return calibration;
}

absl::Status Print(const Calibration& calibration, bool json) {
  if (json) {
    ASSIGN_OR_RETURN(const auto object, CalibrationJson(calibration));
    std::printf("%s\n", ToLine(object).c_str());
  } else {
    ASSIGN_OR_RETURN(const std::string text, CalibrationText(calibration));
    std::fputs(text.c_str(), stdout);
  }
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  ASSIGN_OR_RETURN(const Calibration calibration, Measure(options));
  RETURN_IF_ERROR(Print(calibration, options.json));
  if (!options.allow_noise) RETURN_IF_ERROR(CheckHeldOut(calibration.points));
  RETURN_IF_ERROR(calibration.Save(options.out));
  std::fprintf(stderr, "wrote %s; give it to the daemons as --calibration %s\n",
               options.out.c_str(), options.out.c_str());
  return absl::OkStatus();
}

int Show(const Args& args) {
  bool json = false;
  const Parsed parsed = ParseFlags(
      "calibrate", args,
      [&](config::Binder& b) { b.Field("json", &json, "print one JSON object"); }, 1, 1);
  if (!parsed.go_on) return parsed.exit_code;
  const auto calibration = Calibration::Load(parsed.positional[0]);
  if (!calibration.ok()) return Fail("calibrate", calibration.status());
  const absl::Status status = Print(*calibration, json);
  return status.ok() ? 0 : Fail("calibrate", status);
}

}  // namespace

int Calibrate(const Args& args) {
  if (!args.empty() && args[0] == "show") return Show(Args(args.begin() + 1, args.end()));
  Options options;
  const Parsed parsed = ParseFlags("calibrate", args, [&](config::Binder& b) { options.Bind(b); });
  if (!parsed.go_on) return parsed.exit_code;
  const absl::Status status = Run(options);
  return status.ok() ? 0 : Fail("calibrate", status);
}

}  // namespace smartgen::tools
