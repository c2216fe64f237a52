#include "tools/bench/generation.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <thread>

#include "absl/strings/ascii.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"
#include "proto/decode.grpc.pb.h"
#include "proto/prefill.grpc.pb.h"
#include "tools/bench/request_fields.h"

namespace smartgen::tools::bench {
namespace {

constexpr base::Duration kInfoTimeout = std::chrono::seconds(10);
constexpr std::string_view kModePrefix = "MODE_";

absl::StatusOr<v1::Mode> ParseMode(const std::string& name) {
  for (int i = 0; i < v1::Mode_descriptor()->value_count(); ++i) {
    const auto* value = v1::Mode_descriptor()->value(i);
    if (value->number() != v1::MODE_UNSPECIFIED &&
        absl::AsciiStrToLower(value->name().substr(kModePrefix.size())) == name) {
      return static_cast<v1::Mode>(value->number());
    }
  }
  return base::InvalidArgument("mode: want one of {}, got \"{}\"", fmt::join(KnownModes(), ", "),
                               name);
}

template <typename Stub>
absl::StatusOr<v1::DaemonInfo> AskInfo(Stub& stub) {
  grpc::ClientContext context;
  rpc::SetTimeout(context, kInfoTimeout);
  v1::DaemonInfo info;
  const grpc::Status status = stub.Info(&context, v1::InfoRequest(), &info);
  if (!status.ok()) return rpc::FromGrpc(status);
  return info;
}

}  // namespace

std::vector<std::string> KnownModes() {
  std::vector<std::string> modes;
  for (int i = 0; i < v1::Mode_descriptor()->value_count(); ++i) {
    const auto* value = v1::Mode_descriptor()->value(i);
    if (value->number() == v1::MODE_UNSPECIFIED || value->number() == v1::MODE_AUTO) continue;
    modes.push_back(absl::AsciiStrToLower(value->name().substr(kModePrefix.size())));
  }
  modes.emplace_back("auto");
  return modes;
}

std::vector<std::string> KnownRequestOptions() {
  return OptionNames(*v1::GenerateRequest::descriptor());
}

absl::StatusOr<v1::GenerateRequest> MakeRequest(const GenerationSpec& spec,
                                                const std::string& model_fingerprint) {
  v1::GenerateRequest request;
  request.set_request_id("bench");
  request.set_model_fingerprint(model_fingerprint);
  request.mutable_prompt_ids()->Add(spec.prompt.begin(), spec.prompt.end());
  sampling::SamplingParams params;
  params.temperature = 0;
  params.ignore_eos = true;
  params.forced_ids = spec.forced;
  if (spec.logprobs) params.logprobs = 1;
  rpc::ToProto(params, request.mutable_sampling());
  request.set_max_tokens(spec.max_tokens);
  ASSIGN_OR_RETURN(const v1::Mode mode, ParseMode(spec.mode));
  request.set_mode(mode);
  for (const auto& [name, value] : spec.options) RETURN_IF_ERROR(SetOption(request, name, value));
  return request;
}

absl::StatusOr<std::unique_ptr<DecodeClient>> DecodeClient::Connect(
    const std::string& address, const rpc::ClientOptions& options, base::Duration timeout) {
  ASSIGN_OR_RETURN(auto channel, rpc::Connect(address, options));
  RETURN_IF_ERROR(rpc::WaitUntilServing(channel, timeout));
  return std::unique_ptr<DecodeClient>(new DecodeClient(std::move(channel)));
}

DecodeClient::~DecodeClient() = default;

absl::StatusOr<v1::DaemonInfo> DecodeClient::Info() const {
  const auto stub = v1::Decode::NewStub(channel_);
  return AskInfo(*stub);
}

absl::StatusOr<v1::DaemonInfo> PrefillInfo(const std::shared_ptr<grpc::Channel>& channel) {
  const auto stub = v1::Prefill::NewStub(channel);
  return AskInfo(*stub);
}

std::vector<Generation> DecodeClient::Generate(const std::vector<v1::GenerateRequest>& requests,
                                               base::Duration timeout) {
  std::vector<Generation> generations(requests.size());
  const base::TimePoint start = base::Clock::Real()->Now();
  std::vector<std::thread> threads;
  for (size_t i = 1; i < requests.size(); ++i) {
    threads.emplace_back([&, i] { GenerateOne(requests[i], timeout, start, generations[i]); });
  }
  if (!requests.empty()) GenerateOne(requests[0], timeout, start, generations[0]);
  for (std::thread& thread : threads) thread.join();
  return generations;
}

void DecodeClient::GenerateOne(const v1::GenerateRequest& request, base::Duration timeout,
                               base::TimePoint start, Generation& generation) {
  const base::Clock& clock = *base::Clock::Real();
  grpc::ClientContext context;
  rpc::SetTimeout(context, timeout);
  {
    base::MutexLock lock(mutex_);
    if (cancelled_) {
      generation.status = base::Cancelled("the benchmark was stopped");
      return;
    }
    running_.push_back(&context);
  }
  const auto stub = v1::Decode::NewStub(channel_);
  const auto reader = stub->Generate(&context, request);
  v1::GenerateEvent event;
  bool finished = false;
  while (reader->Read(&event)) {
    if (event.has_token()) {
      generation.token_seconds.push_back(base::ToSeconds(clock.Now() - start));
      generation.tokens.push_back(event.token().token_id());
      if (event.token().top_logprobs_size() > 0) {
        generation.logprobs.push_back(event.token().logprob());
        generation.likeliest.push_back(event.token().top_logprobs(0).token_id());
      }
    }
    if (event.has_finished()) {
      finished = true;
      Flatten(event.finished().stats(), "", generation);
    }
  }
  generation.status = rpc::FromGrpc(reader->Finish());
  {
    base::MutexLock lock(mutex_);
    std::erase(running_, &context);
  }
  const auto count = static_cast<int64_t>(generation.tokens.size());
  if (generation.status.ok() && (!finished || count != request.max_tokens())) {
    generation.status = base::Internal("want {} tokens and an end, got {} tokens and {}",
                                       request.max_tokens(), count, finished ? "an end" : "none");
  }
}

void DecodeClient::CancelAll() {
  base::MutexLock lock(mutex_);
  cancelled_ = true;
  for (grpc::ClientContext* context : running_) context->TryCancel();
}

}  // namespace smartgen::tools::bench
