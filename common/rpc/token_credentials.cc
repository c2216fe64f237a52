#include "common/rpc/token_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>

#include <string>
#include <string_view>

namespace smartgen::rpc {
namespace {

std::string_view View(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

// gRPC's hook between a call's headers and its handler. `state` is the header value to expect.
void CheckToken(void* state, grpc_auth_context*, const grpc_metadata* metadata, size_t count,
                grpc_process_auth_metadata_done_cb done, void* user_data) {
  const std::string& want = *static_cast<const std::string*>(state);
  bool allowed = false;
  bool given = false;
  for (size_t i = 0; i < count; ++i) {
    const std::string_view key = View(metadata[i].key);
    const std::string_view value = View(metadata[i].value);
    if (key == ":path" && value.starts_with("/grpc.health.v1.Health/")) allowed = true;
    if (key != "authorization") continue;
    given = true;
    if (EqualSecrets(value, want)) allowed = true;
  }
  done(user_data, nullptr, 0, nullptr, 0, allowed ? GRPC_STATUS_OK : GRPC_STATUS_UNAUTHENTICATED,
       allowed ? nullptr
       : given ? "the bearer token is not this server's (configuration key token)"
               : "this server asks for a bearer token (configuration key token)");
}

// The C++ credentials refuse a metadata processor without TLS; those of the C core, which they
// wrap, do not.
class CoreCredentials final : public grpc::ServerCredentials {
 public:
  // Takes ownership of `core`.
  CoreCredentials(grpc_server_credentials* core, const std::string& token) : core_(core) {
    if (token.empty()) return;
    grpc_server_credentials_set_auth_metadata_processor(
        core_, {.process = CheckToken,
                .destroy = [](void* state) { delete static_cast<std::string*>(state); },
                .state = new std::string("Bearer " + token)});
  }
  ~CoreCredentials() override { grpc_server_credentials_release(core_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    std::abort();  // ours stands; a second one would replace it
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), core_);
  }

  grpc_server_credentials* core_;
};

}  // namespace

bool EqualSecrets(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const Security& security) {
  if (!security.ServerUsesTls()) {
    // Without a token the plain kind, which needs no library of the core to be set up before.
    if (security.token.empty()) return grpc::InsecureServerCredentials();
    return std::make_shared<CoreCredentials>(grpc_insecure_server_credentials_create(),
                                             security.token);
  }
  ASSIGN_OR_RETURN(const std::string cert, ReadPem("tls.cert", security.tls_cert));
  ASSIGN_OR_RETURN(const std::string key, ReadPem("tls.key", security.tls_key));
  std::string client_ca;
  if (!security.tls_client_ca.empty()) {
    ASSIGN_OR_RETURN(client_ca, ReadPem("tls.client_ca", security.tls_client_ca));
  }
  grpc_ssl_pem_key_cert_pair pair = {key.c_str(), cert.c_str()};
  grpc_server_credentials* core = grpc_ssl_server_credentials_create_ex(
      client_ca.empty() ? nullptr : client_ca.c_str(), &pair, 1,
      client_ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                        : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY,
      nullptr);
  if (core == nullptr) {
    return base::InvalidArgument("tls.cert {} and tls.key {} are refused by TLS", security.tls_cert,
                                 security.tls_key);
  }
  return std::make_shared<CoreCredentials>(core, security.token);
}

}  // namespace smartgen::rpc
