#include "common/rpc/health_check.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <future>

#include "common/rpc/client.h"
#include "common/rpc/status.h"

namespace smartgen::rpc {
namespace {

// HealthCheckRequest { string service = 1; } and HealthCheckResponse { enum status = 1; } by hand:
// Debian does not ship health.proto.
constexpr char kServiceTag = 0x0a;  // field 1, length-delimited
constexpr char kStatusTag = 0x08;   // field 1, varint
constexpr char kServing = 1;
constexpr size_t kMaxServiceName = 127;  // one length byte

std::string EncodeRequest(std::string_view service) {
  if (service.empty()) return "";
  std::string bytes = {kServiceTag, static_cast<char>(service.size())};
  return bytes.append(service);
}

absl::Status DecodeResponse(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (buffer.Dump(&slices).ok()) {
    for (const grpc::Slice& slice : slices) {
      bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
  }
  if (bytes.size() == 2 && bytes[0] == kStatusTag && bytes[1] == kServing) return absl::OkStatus();
  return base::Unavailable("the peer is up and says that it is not serving");
}

// Lives until the call has ended, which the deadline bounds.
struct Call {
  grpc::ClientContext context;
  grpc::ByteBuffer request;
  grpc::ByteBuffer response;
  std::promise<grpc::Status> done;
};

}  // namespace

absl::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel, std::string_view service,
                         base::Duration timeout) {
  if (service.size() > kMaxServiceName) {
    return base::InvalidArgument("service name of {} bytes, want at most {}", service.size(),
                                 kMaxServiceName);
  }
  Call call;
  SetTimeout(call.context, timeout);
  const grpc::Slice slice(EncodeRequest(service));
  call.request = grpc::ByteBuffer(&slice, 1);
  grpc::GenericStub stub(channel);
  stub.UnaryCall(&call.context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &call.request,
                 &call.response, [&call](grpc::Status status) { call.done.set_value(status); });
  RETURN_IF_ERROR(FromGrpc(call.done.get_future().get()));
  return DecodeResponse(call.response);
}

}  // namespace smartgen::rpc
