#include "common/rpc/security.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <fstream>
#include <system_error>
#include "common/base/address.h"

namespace smartgen::rpc {
namespace {

constexpr size_t kMaxPemBytes = 1 << 20;

bool IsTokenCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("-._~+/=").find(c) != std::string_view::npos;
}

}  // namespace

void Security::Bind(config::Binder& binder) {
  binder.Section("tls", [this](config::Binder& tls) {
    tls.Field("cert", &tls_cert, "PEM file: own certificate chain; turns TLS on for the server");
    tls.Field("key", &tls_key, "PEM file: own private key");
    tls.Field("client_ca", &tls_client_ca,
              "PEM file: clients must show a certificate signed by one of these");
    tls.Field("ca", &tls_ca,
              "PEM file: peers' certificates must be signed by one of these; turns TLS on for "
              "connections to peers");
    tls.Field("server_name", &tls_server_name,
              "name in the peers' certificates where it is not their address");
  });
  binder.Secret("token", &token, "shared by all daemons; asked of every call but health checks");
  binder.Field("allow_insecure", &allow_insecure,
               "listen beyond this machine without TLS or a token");
  binder.Check([this] { return Check(); });
}

absl::Status Security::Check() const {
  if (tls_cert.empty() != tls_key.empty()) {
    return base::InvalidArgument("tls.cert and tls.key come together; tls.{} is missing",
                                 tls_cert.empty() ? "cert" : "key");
  }
  if (!tls_client_ca.empty() && tls_cert.empty()) {
    return base::InvalidArgument("tls.client_ca needs tls.cert and tls.key");
  }
  constexpr size_t kMaxTokenBytes = 4096;
  if (token.size() > kMaxTokenBytes || !std::all_of(token.begin(), token.end(), IsTokenCharacter)) {
    return base::InvalidArgument(
        "token: want at most {} letters, digits and - . _ ~ + / = (value not shown)",
        kMaxTokenBytes);
  }
  return absl::OkStatus();
}

bool IsLoopback(std::string_view address) {
  if (address.starts_with("unix:")) return true;
  const std::string_view host = base::HostOf(address);
  if (host == "localhost" || host == "::1") return true;
  // Digits and dots only: 127.example.com is a name that may point anywhere.
  return host.starts_with("127.") &&
         host.find_first_not_of("0123456789.") == std::string_view::npos;
}

absl::Status CheckExposure(std::string_view key, std::string_view address, bool tls, bool token,
                           bool allow_insecure) {
  if (IsLoopback(address) || tls || token || allow_insecure) return absl::OkStatus();
  return base::FailedPrecondition(
      "{} {} can be reached from other machines with neither TLS nor a token: set tls.cert and "
      "tls.key, or token, or listen on 127.0.0.1, or say allow_insecure: true",
      key, address);
}

absl::StatusOr<std::string> ReadPem(std::string_view key, const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return base::NotFound("{}: cannot read {}: {}", key, path,
                          std::generic_category().message(errno));
  }
  std::string content(kMaxPemBytes + 1, '\0');
  in.read(content.data(), static_cast<std::streamsize>(content.size()));
  content.resize(static_cast<size_t>(in.gcount()));
  if (content.size() > kMaxPemBytes || content.find("-----BEGIN ") == std::string::npos) {
    return base::InvalidArgument("{}: {} is not a PEM file of at most {} bytes", key, path,
                                 kMaxPemBytes);
  }
  return content;
}

}  // namespace smartgen::rpc
