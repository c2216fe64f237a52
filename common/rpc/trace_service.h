// The Trace service (proto/trace.proto), the same in every daemon.
#pragma once

#include <functional>
#include <string>

#include "common/base/clock.h"
#include "common/trace/trace.h"
#include "proto/trace.grpc.pb.h"

namespace smartgen::rpc {

class TraceService final : public v1::Trace::CallbackService {
 public:
  // Events in a reply, so that it stays far below kMaxMessageBytes; those beyond count as dropped.
  static constexpr size_t kMaxReplyEvents = 1 << 20;

  // `daemon`: prefilld, decoded. `name` is asked at each call: the address that is bound.
  TraceService(trace::TraceStore* store, const base::Clock* clock, std::string daemon,
               std::function<std::string()> name);

  grpc::ServerUnaryReactor* Clock(grpc::CallbackServerContext* context,
                                  const v1::ClockRequest* request,
                                  v1::ClockReply* response) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const v1::TraceRequest* request, v1::TraceReply* response) override;

 private:
  absl::Status Fill(const std::string& id, v1::TraceReply& reply);

  trace::TraceStore* const store_;
  const base::Clock* const clock_;
  const std::string daemon_;
  const std::function<std::string()> name_;
};

}  // namespace smartgen::rpc
