#include "common/rpc/trace_service.h"

#include <utility>

#include "common/rpc/status.h"

namespace smartgen::rpc {
namespace {

void AddKinds(v1::TraceReply& reply) {
  for (int i = 0; i < trace::kNumKinds; ++i) {
    const trace::KindInfo& info = trace::Describe(static_cast<trace::Kind>(i));
    v1::TraceEventKind& out = *reply.add_kinds();
    out.set_name(std::string(info.name));
    out.set_category(std::string(info.category));
    out.set_track(std::string(info.track));
    out.set_instant(info.instant);
    for (const std::string_view name : info.args) out.add_args(std::string(name));
  }
}

// Takes what it adds from `room`.
void AddTrace(const trace::Snapshot& snapshot, size_t& room, v1::TraceReply& reply) {
  v1::RequestTrace& out = *reply.add_traces();
  out.set_begun_ns(snapshot.begun.ns);
  out.set_finished(snapshot.finished);
  out.mutable_notes()->insert(snapshot.notes.begin(), snapshot.notes.end());
  const auto drop = [&](trace::Kind kind, uint64_t count) {
    out.set_dropped(out.dropped() + count);
    (*out.mutable_dropped_by_name())[std::string(trace::Describe(kind).name)] += count;
  };
  for (const auto& [kind, count] : snapshot.dropped) drop(kind, count);
  for (const trace::Event& event : snapshot.events) {
    if (room == 0) {
      drop(event.kind, 1);
      continue;
    }
    --room;
    v1::TraceEvent& to = *out.add_events();
    to.set_kind(static_cast<uint32_t>(event.kind));
    to.set_begin_ns((event.begin - snapshot.begun).count());
    to.set_duration_ns(event.duration.count());
    to.mutable_args()->Add(event.args.begin(), event.args.end());
  }
}

}  // namespace

TraceService::TraceService(trace::TraceStore* store, const base::Clock* clock, std::string daemon,
                           std::function<std::string()> name)
    : store_(store), clock_(clock), daemon_(std::move(daemon)), name_(std::move(name)) {}

grpc::ServerUnaryReactor* TraceService::Clock(grpc::CallbackServerContext* context,
                                              const v1::ClockRequest*, v1::ClockReply* response) {
  response->set_received_ns(clock_->Now().ns);
  auto* reactor = context->DefaultReactor();
  response->set_sent_ns(clock_->Now().ns);
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

absl::Status TraceService::Fill(const std::string& id, v1::TraceReply& reply) {
  if (id.empty() || id.size() > trace::TraceStore::kMaxIdBytes) {
    return base::InvalidArgument("request_id: want 1 to {} bytes, got {}",
                                 trace::TraceStore::kMaxIdBytes, id.size());
  }
  ASSIGN_OR_RETURN(const auto traces, store_->Find(id));
  reply.set_daemon(daemon_);
  reply.set_name(name_());
  AddKinds(reply);
  size_t room = kMaxReplyEvents;
  for (const trace::TracePtr& one : traces) AddTrace(one->Read(), room, reply);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* TraceService::Get(grpc::CallbackServerContext* context,
                                            const v1::TraceRequest* request,
                                            v1::TraceReply* response) {
  auto* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(Fill(request->request_id(), *response)));
  return reactor;
}

}  // namespace smartgen::rpc
