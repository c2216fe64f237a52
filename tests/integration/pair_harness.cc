#include "tests/integration/pair_harness.h"

#include <cstdlib>
#include <utility>

#include "common/rpc/client.h"
#include "common/rpc/convert.h"

namespace smartgen::integration {

std::vector<int32_t> Expected(const v1::GenerateRequest& request,
                              const FakeExecutor::Options& given) {
  FakeExecutor::Options options = given;
  options.before = nullptr;
  options.max_prefill_tokens = 1 << 20;
  FakeExecutor executor(options);
  auto pool = kv::KvPool::Create(executor.Layout(options.context), {.bytes = 64 << 20});
  kv::KvSequence sequence(pool->get());
  const std::vector<int32_t> prompt(request.prompt_ids().begin(), request.prompt_ids().end());
  std::vector<int32_t> tokens = prompt;
  sampling::Sampler sampler(*rpc::FromProto(request.sampling()), prompt);
  EXPECT_TRUE(sequence.Reserve(static_cast<int64_t>(prompt.size()) + request.max_tokens()).ok());
  std::vector<float> logits(static_cast<size_t>(options.vocab));
  executor::PrefillChunk chunk;
  chunk.sequence = &sequence;
  chunk.tokens = prompt;
  chunk.last_logits = logits;
  EXPECT_TRUE(executor.Prefill(chunk).ok());
  std::vector<int32_t> generated;
  while (static_cast<int64_t>(generated.size()) < request.max_tokens()) {
    const int32_t id = sampler.Sample(logits, static_cast<int64_t>(tokens.size()))->id;
    sampler.Accept(id);
    generated.push_back(id);
    tokens.push_back(id);
    if (sampler.IsEos(id)) break;
    const executor::DecodeSlot slot{&sequence, static_cast<int64_t>(tokens.size()) - 1, id, logits};
    EXPECT_TRUE(executor.Decode({&slot, 1}).ok());
  }
  return generated;
}

Call::Call(v1::Decode::Stub* stub, v1::GenerateRequest request, std::chrono::milliseconds timeout)
    : request_(std::move(request)) {
  rpc::SetTimeout(context_, timeout);
  thread_ = std::thread([this, stub] {
    const auto reader = stub->Generate(&context_, request_);
    v1::GenerateEvent event;
    while (reader->Read(&event)) {
      const std::lock_guard lock(mutex_);
      if (event.has_token()) result_.tokens.push_back(event.token().token_id());
      if (event.has_finished()) {
        result_.finished = true;
        result_.reason = event.finished().reason();
        result_.stats = event.finished().stats();
      }
    }
    const grpc::Status status = reader->Finish();
    const std::lock_guard lock(mutex_);
    result_.status = status;
  });
}

Call::~Call() {
  context_.TryCancel();
  if (thread_.joinable()) thread_.join();
}

size_t Call::tokens() const {
  const std::lock_guard lock(mutex_);
  return result_.tokens.size();
}

const Result& Call::Wait() {
  thread_.join();
  return result_;
}

PairTest::PairTest() {
  for (auto* options : {&prefill_executor_, &decode_executor_}) options->max_prefill_tokens = 64;
  prefill_executor_.before = prefill_gate_.Hook();
  decode_executor_.before = decode_gate_.Hook();
  prefill_options_.listen = prefill_options_.data_listen = "127.0.0.1:0";
  prefill_options_.metrics_listen.clear();
  prefill_options_.kv_bytes = 8 << 20;
  prefill_options_.max_prefill_tokens = 64;
  prefill_options_.heartbeat = std::chrono::milliseconds(200);
  prefill_options_.drain_timeout = std::chrono::seconds(5);
  decode_options_.listen = "127.0.0.1:0";
  decode_options_.metrics_listen.clear();
  decode_options_.kv_bytes = 8 << 20;
  decode_options_.max_prefill_tokens = 64;
  decode_options_.local_chunk_tokens = 32;
  decode_options_.heartbeat = std::chrono::milliseconds(200);
  decode_options_.stall = std::chrono::milliseconds(200);
  decode_options_.drain_timeout = std::chrono::seconds(5);
  for (auto* transport : {&prefill_options_.transport, &decode_options_.transport}) {
    transport->piece_bytes = 64 << 10;
  }
  const char* const channel = std::getenv("PAIR_CHANNEL");
  if (channel != nullptr) UseNccl(channel);
}

void PairTest::UseNccl(const std::string& channel, fakes::FakeDevice::Options device) {
  prefill_nccl_ = std::make_unique<NcclDouble>(&nccl_network_, device);
  decode_nccl_ = std::make_unique<NcclDouble>(&nccl_network_, device);
  prefill_options_.transport.channel = decode_options_.transport.channel = channel;
}

PairTest::~PairTest() {
  prefill_gate_.Open();
  decode_gate_.Open();
  stub_.reset();
  decode_.reset();
  prefill_.reset();
}

void PairTest::StartPrefill(int port) {
  if (port != 0) prefill_options_.listen = fmt::format("127.0.0.1:{}", port);
  PrefillServer::Parts parts;
  auto executor = std::make_unique<FakeExecutor>(prefill_executor_);
  prefill_fake_ = executor.get();
  parts.executor = std::move(executor);
  parts.on_failed = [this] { ++failed_; };
  parts.model_name = "fake";
  parts.model_fingerprint = kFingerprint;
  parts.wrap_channel = wrap_prefill_;
  if (prefill_nccl_ != nullptr) parts.nccl = &prefill_nccl_->nccl;
  parts.lease_tick = std::chrono::milliseconds(20);
  auto server = PrefillServer::Start(prefill_options_, std::move(parts));
  ASSERT_TRUE(server.ok()) << server.status();
  prefill_ = *std::move(server);
}

void PairTest::StartDecode(std::vector<std::string> addresses) {
  if (addresses.empty() && prefill_ != nullptr) addresses = {prefill_->address()};
  decode_options_.prefill = std::move(addresses);
  DecodeServer::Parts parts;
  auto executor = std::make_unique<FakeExecutor>(decode_executor_);
  decode_fake_ = executor.get();
  parts.executor = std::move(executor);
  parts.on_failed = [this] { ++failed_; };
  parts.model_name = "fake";
  parts.model_fingerprint = kFingerprint;
  if (decode_nccl_ != nullptr) parts.nccl = &decode_nccl_->nccl;
  auto server = DecodeServer::Start(decode_options_, std::move(parts));
  ASSERT_TRUE(server.ok()) << server.status();
  decode_ = *std::move(server);
  stub_ = v1::Decode::NewStub(*rpc::Connect(decode_->address(), {}));
}

void PairTest::WaitPaired() {
  ASSERT_TRUE(WaitUntil([&] {
    const v1::DaemonInfo info = decode_->Info();
    for (const auto& peer : info.peers()) {
      if (!peer.up()) return false;
    }
    return info.peers_size() > 0;
  })) << decode_->Info().ShortDebugString();
}

std::vector<Result> PairTest::ExpectAllRight(const std::vector<v1::GenerateRequest>& requests) {
  std::vector<std::unique_ptr<Call>> calls;
  for (const auto& request : requests) calls.push_back(Begin(request));
  std::vector<Result> results;
  for (size_t i = 0; i < calls.size(); ++i) {
    results.push_back(calls[i]->Wait());
    EXPECT_TRUE(results[i].status.ok()) << i << ": " << results[i].status.error_message();
    EXPECT_EQ(results[i].tokens, Expected(requests[i])) << i;
  }
  return results;
}

bool PairTest::AtBaseline() const {
  if (decode_ != nullptr) {
    const v1::DaemonInfo info = decode_->Info();
    if (info.running() + info.waiting() != 0) return false;
    if (info.kv_pages_free() + info.kv_pages_cached() != info.kv_pages_total()) return false;
    if (decode_->pool().misuses() != 0) return false;
  }
  if (prefill_ != nullptr) {
    const v1::DaemonInfo info = prefill_->Info();
    if (info.running() + info.waiting() + info.leases() != 0) return false;
    if (info.kv_pages_free() + info.kv_pages_cached() != info.kv_pages_total()) return false;
    if (prefill_->pool().misuses() != 0) return false;
  }
  return true;
}

void PairTest::ExpectBaseline(std::chrono::milliseconds timeout) {
  EXPECT_TRUE(WaitUntil([&] { return AtBaseline(); }, timeout))
      << "decode: " << (decode_ ? decode_->Info().ShortDebugString() : "none")
      << "\nprefill: " << (prefill_ ? prefill_->Info().ShortDebugString() : "none");
}

}  // namespace smartgen::integration
