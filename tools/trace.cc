// trace: one request over time, as prefilld, decoded and the client saw it, in one file.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>

#include "common/base/clock.h"
#include "common/config/version.h"
#include "common/rpc/security.h"
#include "tools/command.h"
#include "tools/http_client.h"
#include "tools/trace/chrome.h"
#include "tools/trace/collect.h"
#include "tools/trace/generate.h"

namespace smartgen::tools {
namespace {

using trace_view::DaemonTrace;
using trace_view::Json;
using trace_view::Process;

constexpr std::uintmax_t kMaxPromptBytes = 16 << 20;

struct Options {
  std::string url = "http://127.0.0.1:8000";
  std::string api_key;
  std::string request;
  std::string prompt_file;
  int64_t max_tokens = 32;
  std::string mode;
  std::string options;
  std::vector<std::string> decode;
  std::vector<std::string> prefill;
  std::string out = "trace.json";
  base::Duration timeout = std::chrono::seconds(10);
  rpc::Security security;

  void Bind(config::Binder& b) {
    b.Field("prompt-file", &prompt_file, "send this text as a traced request, then collect");
    b.Field("request", &request, "id of a response to a request made with \"trace\": true");
    b.Field("url", &url, "with prompt-file: the gateway, http://host:port");
    b.Secret("api_key", &api_key, "bearer token, where the gateway asks for one");
    b.Field("max-tokens", &max_tokens, "with prompt-file: tokens to generate");
    b.Field("mode", &mode, "with prompt-file: as \"mode\" in \"smartgen\"; empty: the default");
    b.Field("options", &options, "with prompt-file: a JSON object, more of \"smartgen\"");
    b.Field("decode", &decode, "gRPC addresses of decoded; empty: where the response came from");
    b.Field("prefill", &prefill, "gRPC addresses of prefilld; empty: those that decoded asked");
    b.Field("out", &out, "the file to write");
    b.Time("timeout", &timeout, "for each answer of a daemon");
    security.Bind(b);
    b.Check([this] { return Check(); });
  }

  absl::Status Check() const {
    if (request.empty() == prompt_file.empty()) {
      return base::InvalidArgument("want either --prompt-file or --request, got {}",
                                   request.empty() ? "neither" : "both");
    }
    if (!request.empty() && decode.empty()) {
      return base::InvalidArgument(
          "--request wants --decode HOST:PORT: the response says which in its "
          "\"smartgen\".\"decode_address\"");
    }
    if (max_tokens < 1 || max_tokens > 1 << 24) {
      return base::InvalidArgument("max-tokens: want 1 to {}, got {}", 1 << 24, max_tokens);
    }
    if (timeout < std::chrono::milliseconds(1)) {
      return base::InvalidArgument("timeout: want at least 1ms, got {}ns", timeout.count());
    }
    if (out.empty()) return base::InvalidArgument("out: want the name of the file to write");
    return absl::OkStatus();
  }
};

// The file, found writable before anything is asked; one that was made for that and never written
// is removed.
class OutFile {
 public:
  static absl::StatusOr<std::unique_ptr<OutFile>> Open(const std::string& path) {
    std::error_code ignored;
    auto file = std::unique_ptr<OutFile>(new OutFile(path));
    file->existed_ = std::filesystem::exists(path, ignored);
    if (!std::ofstream(path, std::ios::app)) {
      file->existed_ = true;
      return base::InvalidArgument("out: cannot write {}", path);
    }
    return file;
  }
  ~OutFile() {
    std::error_code ignored;
    if (!existed_ && !written_) std::filesystem::remove(path_, ignored);
  }
  absl::Status Write(const std::string& text) {
    std::ofstream file(path_, std::ios::trunc | std::ios::binary);
    file << text;
    file.close();
    if (!file) return base::Unavailable("writing {} failed", path_);
    written_ = true;
    return absl::OkStatus();
  }

 private:
  explicit OutFile(std::string path) : path_(std::move(path)) {}
  const std::string path_;
  bool existed_ = false;
  bool written_ = false;
};

absl::StatusOr<std::string> ReadPrompt(const std::string& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return base::NotFound("prompt-file: {}: {}", path, error.message());
  if (size == 0 || size > kMaxPromptBytes) {
    return base::InvalidArgument("prompt-file: {}: want 1 to {} bytes, got {}", path,
                                 kMaxPromptBytes, size);
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty()) return base::Unavailable("prompt-file: cannot read {}", path);
  return text.str();
}

absl::StatusOr<trace_view::Generated> Generate(const Options& options) {
  trace_view::GenerateOptions generate;
  ASSIGN_OR_RETURN(generate.url, ParseUrl(options.url));
  ASSIGN_OR_RETURN(generate.prompt, ReadPrompt(options.prompt_file));
  generate.api_key = options.api_key;
  generate.max_tokens = options.max_tokens;
  if (!options.options.empty()) {
    generate.smartgen = Json::parse(options.options, nullptr, false);
    if (!generate.smartgen.is_object()) {
      return base::InvalidArgument("options: want a JSON object, got {}", options.options);
    }
  }
  if (!options.mode.empty()) generate.smartgen["mode"] = options.mode;
  auto generated = trace_view::Generate(generate);
  if (!generated.ok()) return base::Annotate(generated.status(), options.url);
  return generated;
}

// What every daemon of the list has; those that have none may, if another does.
absl::Status CollectFrom(const std::vector<std::string>& addresses, const std::string& id,
                         const trace_view::CollectOptions& options,
                         std::vector<DaemonTrace>& traces) {
  absl::Status missing;
  bool found = false;
  for (const std::string& address : addresses) {
    auto trace = trace_view::Collect(address, id, options);
    if (trace.ok()) {
      found = true;
      traces.push_back(*std::move(trace));
    } else if (absl::IsNotFound(trace.status())) {
      missing = trace.status();
    } else {
      return trace.status();
    }
  }
  return found ? absl::OkStatus() : missing;
}

// The prefill side's part: by the addresses given, or by those that decoded used. The latter may
// not be reachable from here, which leaves a trace without them: `left_out` says so.
absl::Status CollectPrefill(const Options& options, const std::string& id,
                            const trace_view::CollectOptions& collect,
                            std::vector<DaemonTrace>& traces, Json& left_out) {
  if (!options.prefill.empty()) return CollectFrom(options.prefill, id, collect, traces);
  std::vector<std::string> addresses;
  for (const DaemonTrace& decode : traces) {
    for (const std::string& address : trace_view::PrefillsOf(decode)) {
      if (std::find(addresses.begin(), addresses.end(), address) == addresses.end()) {
        addresses.push_back(address);
      }
    }
  }
  for (const std::string& address : addresses) {
    const absl::Status status = CollectFrom({address}, id, collect, traces);
    if (status.ok()) continue;
    const std::string why(base::MessageOf(status));
    std::fprintf(stderr, "smartgen trace: without its prefill instance (--prefill): %s\n",
                 why.c_str());
    left_out.push_back(why);
  }
  return absl::OkStatus();
}

void Summarise(std::span<const Process> processes, std::span<const DaemonTrace> daemons,
               const Options& options, const std::string& id) {
  for (const Process& process : processes) {
    std::printf("%s\n", process.name.c_str());
    struct Row {
      int64_t count = 0;
      int64_t bytes = 0;
      double seconds = 0;
    };
    std::map<std::string, Row> rows;
    for (const trace_view::ViewEvent& event : process.events) {
      Row& row = rows[fmt::format("{}: {}", event.track, event.name)];
      ++row.count;
      row.seconds += static_cast<double>(event.duration_ns) * 1e-9;
      for (const auto& [name, value] : event.args) row.bytes += name == "bytes" ? value : 0;
    }
    for (const auto& [name, row] : rows) {
      std::printf("  %-44s %7lld  %9.1f ms", name.c_str(), static_cast<long long>(row.count),
                  row.seconds * 1e3);
      if (row.bytes > 0) std::printf("  %9.3f MB", static_cast<double>(row.bytes) * 1e-6);
      std::printf("\n");
    }
  }
  for (const DaemonTrace& daemon : daemons) {
    std::printf("%s %s: clock known to %.0f us\n", daemon.reply.daemon().c_str(),
                daemon.address.c_str(), static_cast<double>(daemon.clock.uncertainty_ns) * 1e-3);
    for (const v1::RequestTrace& trace : daemon.reply.traces()) {
      if (trace.dropped() == 0) continue;
      std::printf("  %llu events beyond trace.events were dropped\n",
                  static_cast<unsigned long long>(trace.dropped()));
    }
  }
  std::printf("wrote %s of request %s; open it in https://ui.perfetto.dev or chrome://tracing\n",
              options.out.c_str(), id.c_str());
}

absl::Status Run(const Options& options) {
  ASSIGN_OR_RETURN(const auto file, OutFile::Open(options.out));
  std::optional<trace_view::Generated> generated;
  std::string id = options.request;
  std::vector<std::string> decode = options.decode;
  if (id.empty()) {
    ASSIGN_OR_RETURN(generated, Generate(options));
    id = generated->id;
    if (const auto address = generated->smartgen.find("decode_address");
        decode.empty() && address != generated->smartgen.end() && address->is_string()) {
      decode.push_back(address->get<std::string>());
    }
    if (decode.empty()) {
      return base::Unavailable("the response names no decode_address: give --decode HOST:PORT");
    }
  }
  const trace_view::CollectOptions collect{.security = options.security,
                                           .timeout = options.timeout};
  std::vector<DaemonTrace> traces;
  RETURN_IF_ERROR(CollectFrom(decode, id, collect, traces));
  Json left_out = Json::array();
  RETURN_IF_ERROR(CollectPrefill(options, id, collect, traces, left_out));

  std::vector<Process> processes;
  Json daemons = Json::array();
  for (const DaemonTrace& daemon : traces) {
    for (Process& process : trace_view::ToProcesses(daemon)) {
      processes.push_back(std::move(process));
    }
    daemons.push_back(trace_view::DaemonJson(daemon));
  }
  if (generated) processes.insert(processes.begin(), std::move(generated->process));
  const int64_t ago_ns = base::Clock::Real()->Now().ns - trace_view::EarliestNs(processes);
  Json metadata{{"request_id", id},
                {"smartgen_version", std::string(config::SoftwareVersion())},
                {"begun_unix_seconds", base::Clock::Real()->UnixSeconds() - ago_ns / 1'000'000'000},
                {"daemons", std::move(daemons)}};
  if (!left_out.empty()) metadata["left_out"] = std::move(left_out);
  if (generated) metadata["response"] = generated->smartgen;
  RETURN_IF_ERROR(file->Write(trace_view::ToChrome(processes, std::move(metadata)).dump()));
  Summarise(processes, traces, options, id);
  return absl::OkStatus();
}

}  // namespace

int Trace(const Args& args) {
  Options options;
  const Parsed parsed = ParseFlags("trace", args, [&](config::Binder& b) { options.Bind(b); });
  if (!parsed.go_on) return parsed.exit_code;
  const absl::Status status = Run(options);
  return status.ok() ? 0 : Fail("trace", status);
}

}  // namespace smartgen::tools
