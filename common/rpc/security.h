// Who may talk to whom: TLS, the shared token, and the rule that nothing is exposed by accident.
#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/config/binder.h"

namespace smartgen::rpc {

// One set for a daemon: as a server and as a client of its peers. All empty: plain text without a
// token, which is for loopback.
struct Security {
  // PEM files. Own certificate chain and key: shown to clients, and to servers that ask for one.
  std::string tls_cert;
  std::string tls_key;
  // Server: clients must show a certificate signed by one of these. Empty: any client.
  std::string tls_client_ca;
  // Client: peers' certificates must be signed by one of these. Set: outgoing connections use TLS.
  std::string tls_ca;
  // Client: the name in the peers' certificates where it is not their address.
  std::string tls_server_name;
  // Shared by all daemons; sent with every call and asked of every call but health checks.
  // Letters, digits and - . _ ~ + / = only (what HTTP allows as a bearer token).
  std::string token;
  // Lets a server listen beyond this machine without TLS or a token.
  bool allow_insecure = false;

  // Keys tls.cert, tls.key, tls.client_ca, tls.ca, tls.server_name, token, allow_insecure, and the
  // check that cert and key come together.
  void Bind(config::Binder& binder);
  absl::Status Check() const;
  bool ServerUsesTls() const { return !tls_cert.empty(); }
  bool ClientUsesTls() const { return !tls_ca.empty(); }
};

// 127.0.0.0/8, ::1, localhost or a Unix socket; `address` is host:port.
bool IsLoopback(std::string_view address);

// FailedPrecondition where `key` (the configuration's name for `address`) would be reachable from
// other machines with neither TLS nor a token, and allow_insecure is off. Also for what is not gRPC
// (the gateway's HTTP).
absl::Status CheckExposure(std::string_view key, std::string_view address, bool tls, bool token,
                           bool allow_insecure);

// Certificates and keys: whole file, at most 1 MiB. Errors name the configuration key.
absl::StatusOr<std::string> ReadPem(std::string_view key, const std::string& path);

}  // namespace smartgen::rpc
