#include "prefill_server/control_service.h"

#include <utility>

#include "common/base/address.h"
#include "common/base/log.h"
#include "common/config/version.h"
#include "common/rpc/convert.h"

namespace smartgen::prefill_server {
namespace {

// The prefill side receives no KV: it only learns here that the channel is gone.
class ClosedWatch final : public channel::Receiver {
 public:
  explicit ClosedWatch(std::weak_ptr<PeerLink> link) : link_(std::move(link)) {}
  absl::StatusOr<channel::Placement> OnHead(channel::Lane, std::span<const std::byte>,
                                            uint64_t) override {
    return base::FailedPrecondition("the prefill side takes no KV");
  }
  void OnPayload(channel::Lane, std::span<const std::byte>, channel::Placement) override {}
  void OnClosed(const absl::Status& reason) override {
    if (const auto link = link_.lock()) {
      link->GoDown(base::Unavailable("channel closed: {}", base::MessageOf(reason)));
    }
  }

 private:
  const std::weak_ptr<PeerLink> link_;
};

// As gRPC names a peer: "ipv4:10.0.0.3:4711" -> "10.0.0.3", "ipv6:%5B::1%5D:4711" -> "::1".
std::string PeerHost(const std::string& peer) {
  std::string address = peer.substr(peer.find(':') + 1);
  for (const auto& [code, bracket] : {std::pair("%5B", "["), std::pair("%5D", "]")}) {
    const size_t at = address.find(code);
    if (at != std::string::npos) address.replace(at, 3, bracket);
  }
  return std::string(base::HostOf(address));
}

}  // namespace

ControlService::ControlService(Options options, Parts parts)
    : options_(std::move(options)), parts_(std::move(parts)), ticker_([this] { TickLoop(); }) {}

ControlService::~ControlService() {
  Stop(base::Unavailable("prefilld is stopping"));
  if (ticker_.joinable()) ticker_.join();
}

void ControlService::Stop(const absl::Status& reason) {
  {
    base::MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyAll();
  for (const auto& link : Links()) link->GoDown(reason);
}

std::vector<std::shared_ptr<PeerLink>> ControlService::Links() const {
  base::MutexLock lock(mutex_);
  std::vector<std::shared_ptr<PeerLink>> links;
  for (const auto& [key, link] : links_) links.push_back(link);
  return links;
}

void ControlService::TickLoop() {
  for (;;) {
    {
      base::MutexLock lock(mutex_);
      if (!stop_) wake_.WaitFor(mutex_, options_.heartbeat / PeerLink::kTicksPerHeartbeat);
      if (stop_) return;
    }
    for (const auto& link : Links()) link->Tick();
  }
}

grpc::ServerBidiReactor<v1::ControlMessage, v1::ControlMessage>* ControlService::Connect(
    grpc::CallbackServerContext* context) {
  PeerLink::Context link_context;
  link_context.engine = parts_.engine;
  link_context.clock = parts_.clock;
  link_context.metrics = parts_.metrics;
  link_context.own_incarnation = parts_.incarnation;
  link_context.heartbeat = options_.heartbeat;
  link_context.draining = parts_.draining;
  link_context.on_down = [this](const std::shared_ptr<PeerLink>& link) {
    base::MutexLock lock(mutex_);
    links_.erase(link.get());
  };
  auto link = std::make_shared<PeerLink>(std::move(link_context));
  ControlStream::Events events;
  events.on_message = [this, link, host = PeerHost(context->peer())](
                          ControlStream&, const v1::ControlMessage& message) {
    if (link->state() == PeerLink::State::kHello) {
      OnFirstMessage(link, host, message);
    } else {
      link->OnMessage(message);
    }
  };
  events.on_closed = [link] { link->GoDown(base::Unavailable("the control stream was closed")); };
  const auto stream = ControlStream::Create(std::move(events));
  link->SetStream(stream);
  absl::Status refused;
  {
    base::MutexLock lock(mutex_);
    if (stop_) {
      refused = base::Unavailable("prefilld is stopping");
    } else if (static_cast<int>(links_.size()) >= options_.max_peers) {
      refused = base::ResourceExhausted("{} decode instances are connected already (max_peers)",
                                        options_.max_peers);
    } else {
      links_[link.get()] = link;
    }
  }
  if (!refused.ok()) link->GoDown(refused);
  return stream.get();
}

void ControlService::OnFirstMessage(const std::shared_ptr<PeerLink>& link, const std::string& host,
                                    const v1::ControlMessage& message) {
  absl::Status status = base::InvalidArgument("control stream: the first message must be Hello");
  if (message.has_hello()) status = BeginPairing(link, host, message.hello());
  if (!status.ok()) link->GoDown(base::Annotate(status, "pairing refused"));
}

absl::Status ControlService::BeginPairing(const std::shared_ptr<PeerLink>& link,
                                          const std::string& host, const v1::Hello& hello) {
  RETURN_IF_ERROR(CheckHello(hello, parts_.identity));
  if (options_.checksum && !hello.checksum()) {
    return base::FailedPrecondition("checksum: ours on, theirs off");
  }
  const std::string instance = host + "/" + hello.instance();
  ReplaceOld(link, hello, instance);
  const base::ChannelKey key = base::NewChannelKey();
  v1::HelloReply reply;
  ASSIGN_OR_RETURN(const std::string transport, TransportFor(hello, parts_.identity));
  if (transport == "nccl") {
    ASSIGN_OR_RETURN(const channel::NcclTicket ticket, parts_.nccl->MakeTicket());
    v1::NcclTicket& told = *reply.mutable_nccl();
    told.set_unique_id(ticket.id.data(), ticket.id.size());
    told.set_epoch(ticket.epoch);
    ExpectChannel(link, key, &ticket);
  } else {
    ExpectChannel(link, key, nullptr);
  }
  reply.set_wire_version(v1::WIRE_VERSION_CURRENT);
  reply.set_software_version(std::string(config::SoftwareVersion()));
  reply.set_incarnation(parts_.incarnation);
  reply.set_transport(transport);
  reply.set_data_port(parts_.tcp->listen_port());
  reply.set_channel_key(reinterpret_cast<const char*>(key.data()), key.size());
  reply.set_lease_seconds(base::ToSeconds(options_.lease));
  link->Accept(hello, instance, std::move(reply));
  return absl::OkStatus();
}

void ControlService::ReplaceOld(const std::shared_ptr<PeerLink>& link, const v1::Hello& hello,
                                const std::string& instance) {
  for (const auto& other : Links()) {
    if (other == link) continue;
    if (other->incarnation() == hello.incarnation()) {
      other->GoDown(base::Aborted("the decode instance has connected anew"));
    } else if (other->instance() == instance) {
      other->GoDown(base::Aborted("a new incarnation of the decode instance has connected"));
    }
  }
}

void ControlService::ExpectChannel(const std::shared_ptr<PeerLink>& link,
                                   const base::ChannelKey& key, const channel::NcclTicket* ticket) {
  auto on_channel = [this, link](absl::StatusOr<std::shared_ptr<channel::Channel>> channel) {
    if (!channel.ok()) {
      link->GoDown(base::Annotate(channel.status(), "waiting for the data channel"));
      return;
    }
    link->SetChannel(options_.wrap_channel ? options_.wrap_channel(*std::move(channel))
                                           : *std::move(channel));
  };
  auto watch = std::make_shared<ClosedWatch>(link);
  if (ticket == nullptr) {
    parts_.tcp->Expect(key, std::move(watch), options_.pairing_timeout, std::move(on_channel));
  } else {
    parts_.nccl->Expect(key, *ticket, std::move(watch), options_.pairing_timeout,
                        std::move(on_channel));
  }
}

absl::StatusOr<std::shared_ptr<PeerLink>> ControlService::FindUp(
    uint64_t decode_incarnation) const {
  for (const auto& link : Links()) {
    if (link->up() && link->incarnation() == decode_incarnation) return link;
  }
  return base::FailedPrecondition("no pairing is up with decode incarnation {:x}",
                                  decode_incarnation);
}

std::vector<v1::PeerInfo> ControlService::Peers() const {
  std::vector<v1::PeerInfo> peers;
  for (const auto& link : Links()) {
    v1::PeerInfo info;
    info.set_address(link->instance());
    info.set_up(link->up());
    info.set_transport(link->transport());
    peers.push_back(std::move(info));
  }
  return peers;
}

}  // namespace smartgen::prefill_server
