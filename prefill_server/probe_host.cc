#include "prefill_server/probe_host.h"

#include <utility>

#include "common/base/ids.h"
#include "common/base/log.h"

namespace smartgen::prefill_server {

absl::StatusOr<v1::ProbeReply> ProbeHost::Begin() {
  const base::ChannelKey key = base::NewChannelKey();
  std::shared_ptr<transfer::ProbeResponder> responder;
  {
    base::MutexLock lock(mutex_);
    if (stopped_) return base::Unavailable("prefilld is stopping");
    if (running_ != nullptr && !running_->closed()) {
      return base::ResourceExhausted("another measurement of the link is under way");
    }
    responder = std::make_shared<transfer::ProbeResponder>(options_.max_bytes, options_.max_pings);
    running_ = responder;
    deadline_ = base::Deadline::After(*clock_, options_.timeout);
  }
  SMARTGEN_LOG(info, "probe", "a decode side measures the link");
  tcp_->Expect(key, responder, options_.timeout,
               [responder](absl::StatusOr<std::shared_ptr<channel::Channel>> channel) {
                 if (channel.ok()) {
                   responder->SetChannel(*std::move(channel));
                 } else {
                   responder->Close(channel.status());
                 }
               });
  v1::ProbeReply reply;
  reply.set_data_port(static_cast<uint32_t>(tcp_->listen_port()));
  reply.set_channel_key(reinterpret_cast<const char*>(key.data()), key.size());
  reply.set_max_bytes(options_.max_bytes);
  reply.set_timeout_seconds(base::ToSeconds(options_.timeout));
  return reply;
}

void ProbeHost::Tick() {
  std::shared_ptr<transfer::ProbeResponder> late;
  {
    base::MutexLock lock(mutex_);
    if (running_ == nullptr || !deadline_.Expired(*clock_)) return;
    late = std::move(running_);
  }
  if (!late->closed()) late->Close(base::DeadlineExceeded("the measurement's time is over"));
}

void ProbeHost::Stop() {
  std::shared_ptr<transfer::ProbeResponder> running;
  {
    base::MutexLock lock(mutex_);
    stopped_ = true;
    running = std::move(running_);
  }
  if (running != nullptr) running->Close(base::Unavailable("prefilld is stopping"));
}

}  // namespace smartgen::prefill_server
