#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "decode_server/pairing.h"
#include "decode_server/remote_attempt.h"

namespace smartgen::decode_server {
namespace {

// For gRPC to be done with streams that were cancelled.
constexpr base::Duration kReleasePatience = std::chrono::seconds(5);

}  // namespace

absl::StatusOr<std::unique_ptr<PairingManager>> PairingManager::Start(
    PairingContext context, const std::vector<std::string>& addresses) {
  auto manager = std::unique_ptr<PairingManager>(new PairingManager(std::move(context)));
  for (const std::string& address : addresses) {
    const auto& known = manager->pairings_;
    if (std::any_of(known.begin(), known.end(),
                    [&](const auto& other) { return other->address == address; })) {
      return base::InvalidArgument("prefill: {} is named twice", address);
    }
    // Says now what is wrong with an address or a certificate.
    const auto channel = rpc::Connect(address, manager->context_.options.client);
    if (!channel.ok()) return base::Annotate(channel.status(), fmt::format("prefill {}", address));
    auto pairing = std::make_unique<Pairing>();
    pairing->address = address;
    manager->context_.metrics->GetGauge("peer_up", {{"peer", address}}).Set(0);
    manager->pairings_.push_back(std::move(pairing));
  }
  for (auto& pairing : manager->pairings_) {
    pairing->thread = std::thread([m = manager.get(), p = pairing.get()] { m->Keep(*p); });
  }
  return manager;
}

PairingManager::~PairingManager() { Stop(); }

void PairingManager::Stop() {
  std::vector<std::shared_ptr<PairingSession>> sessions;
  {
    base::MutexLock lock(mutex_);
    stop_ = true;
    for (const auto& pairing : pairings_) {
      if (pairing->session != nullptr) sessions.push_back(pairing->session);
    }
  }
  wake_.NotifyAll();
  for (const auto& session : sessions) session->GoDown(base::Unavailable("decoded is stopping"));
  for (const auto& pairing : pairings_) {
    if (pairing->thread.joinable()) pairing->thread.join();
  }
  sessions.clear();
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  {
    base::MutexLock lock(mutex_);
    for (const auto& pairing : pairings_) {
      for (auto& channel : pairing->channels) channels.push_back(std::move(channel));
      pairing->channels.clear();
    }
  }
  rpc::ReleaseChannels(std::move(channels), kReleasePatience);
}

bool PairingManager::stopped() const {
  base::MutexLock lock(mutex_);
  return stop_;
}

void PairingManager::Keep(Pairing& pairing) {
  base::Duration backoff = context_.options.min_backoff;
  while (!stopped()) {
    auto channel = rpc::Connect(pairing.address, context_.options.client);
    absl::Status status = channel.status();
    bool was_up = false;
    if (channel.ok()) {
      // Dropped without the lock: closing a connection may take a while.
      std::vector<std::shared_ptr<grpc::Channel>> released;
      const auto session = std::make_shared<PairingSession>(&context_, pairing.address, *channel,
                                                            TransportsFor(pairing));
      {
        base::MutexLock lock(mutex_);
        if (stop_) return;
        pairing.session = session;
        std::erase_if(pairing.channels, [&](auto& old) {
          if (old.use_count() > 1) return false;
          released.push_back(std::move(old));
          return true;
        });
        pairing.channels.push_back(*channel);
      }
      status = session->Open();
      was_up = status.ok();
      CountTransport(pairing, *session, status);
      if (was_up) RunSession(pairing, session);
      session->GoDown(status.ok() ? base::Unavailable("the pairing has ended") : status);
      status = session->reason();
    }
    base::MutexLock lock(mutex_);
    pairing.session.reset();
    const std::string detail(base::MessageOf(status));
    if (was_up || detail != pairing.detail) {
      SMARTGEN_LOG(warn, "pairing", "down peer={} reason={}", pairing.address, detail);
    }
    pairing.detail = detail;
    if (was_up) backoff = context_.options.min_backoff;
    if (!stop_) wake_.WaitFor(mutex_, backoff);
    backoff = std::min(backoff * 2, context_.options.max_backoff);
  }
}

std::vector<std::string> PairingManager::TransportsFor(const Pairing& pairing) const {
  std::vector<std::string> transports = context_.options.transports;
  if (transports.size() > 1 && pairing.nccl_failures >= kNcclFailures) {
    std::erase(transports, "nccl");
  }
  return transports;
}

void PairingManager::CountTransport(Pairing& pairing, const PairingSession& session,
                                    const absl::Status& opened) {
  const bool wanted = context_.options.transports.front() == "nccl";
  const bool nccl = session.transport() == "nccl";
  if (!wanted) return;
  if (nccl) {
    pairing.nccl_failures = opened.ok() ? 0 : pairing.nccl_failures + 1;
  } else if (opened.ok()) {
    context_.metrics->GetCounter("fallback_total", {{"reason", "tcp_for_nccl"}}).Add();
    SMARTGEN_LOG(warn, "pairing", "tcp in the place of nccl with {}: {}", pairing.address,
                 pairing.nccl_failures >= kNcclFailures ? "pairing over nccl failed too often"
                                                        : "it has none, or another version");
    pairing.nccl_failures = 0;
  }
}

void PairingManager::RunSession(Pairing& pairing, const std::shared_ptr<PairingSession>& session) {
  metrics::Gauge& up = context_.metrics->GetGauge("peer_up", {{"peer", pairing.address}});
  metrics::Gauge& transport = context_.metrics->GetGauge(
      "transport_info", {{"peer", pairing.address}, {"transport", session->transport()}});
  up.Set(1);
  transport.Set(1);
  SMARTGEN_LOG(info, "pairing", "paired peer={} transport={} incarnation={:x}", pairing.address,
               session->transport(), session->peer_incarnation());
  while (session->up() && !stopped()) {
    session->Tick();
    session->WaitDown(context_.options.heartbeat / PairingSession::kTicksPerHeartbeat);
  }
  up.Set(0);
  transport.Set(0);
}

std::shared_ptr<PairingSession> PairingManager::SessionOf(const std::string& address) const {
  base::MutexLock lock(mutex_);
  for (const auto& pairing : pairings_) {
    if (pairing->address == address) return pairing->session;
  }
  return nullptr;
}

std::vector<std::string> PairingManager::Healthy(const std::vector<std::string>& ranking) const {
  std::vector<std::string> order = ranking;
  for (const auto& pairing : pairings_) {
    if (std::find(order.begin(), order.end(), pairing->address) == order.end()) {
      order.push_back(pairing->address);
    }
  }
  std::erase_if(order, [&](const std::string& address) {
    const auto session = SessionOf(address);
    return session == nullptr || !session->healthy();
  });
  return order;
}

absl::StatusOr<std::shared_ptr<PrefillAttempt>> PairingManager::Start(const std::string& address,
                                                                      AttemptSpec spec,
                                                                      AttemptEvents events) {
  const auto session = SessionOf(address);
  if (session == nullptr) return base::Unavailable("{} is not paired", address);
  ASSIGN_OR_RETURN(auto attempt, RemoteAttempt::Start(session, std::move(spec), std::move(events)));
  return std::shared_ptr<PrefillAttempt>(std::move(attempt));
}

uint64_t PairingManager::received_bytes(const std::string& address) const {
  const auto session = SessionOf(address);
  return session == nullptr ? 0 : session->received_bytes();
}

std::vector<v1::PeerInfo> PairingManager::Peers() const {
  std::vector<v1::PeerInfo> peers;
  base::MutexLock lock(mutex_);
  for (const auto& pairing : pairings_) {
    v1::PeerInfo info;
    info.set_address(pairing->address);
    info.set_up(pairing->session != nullptr && pairing->session->up());
    if (pairing->session != nullptr) info.set_transport(pairing->session->transport());
    if (!info.up()) info.set_detail(pairing->detail);
    peers.push_back(std::move(info));
  }
  return peers;
}

}  // namespace smartgen::decode_server
