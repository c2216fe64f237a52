#include "tools/bench/network.h"

#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "tools/bench/link_probe.h"
#include "tools/process.h"

namespace smartgen::tools::bench {
namespace {

constexpr const char* kPrefillDevice = "sg-prefill";
constexpr const char* kDecodeDevice = "sg-decode";
// Addresses for documentation (RFC 5737): nobody's.
constexpr const char* kPrefillHost = "192.0.2.1";
constexpr const char* kDecodeHost = "192.0.2.2";

// Also where users without root have no PATH to.
std::string FindProgram(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::string folders = (path == nullptr ? "" : path) + std::string(":/usr/sbin:/sbin");
  for (size_t begin = 0; begin <= folders.size();) {
    const size_t end = std::min(folders.find(':', begin), folders.size());
    const std::string file = folders.substr(begin, end - begin) + "/" + name;
    if (access(file.c_str(), X_OK) == 0) return file;
    begin = end + 1;
  }
  return "";
}

bool WriteFile(const char* path, const std::string& text) {
  std::ofstream out(path);
  out << text;
  return static_cast<bool>(out.flush());
}

// Root of a namespace of our own, where we are not root.
absl::Status BecomeRootOfOwnUsers() {
  const uid_t uid = geteuid();
  const gid_t gid = getegid();
  if (unshare(CLONE_NEWUSER) != 0) {
    return base::FailedPrecondition("not root, and no user namespace is to be had ({})",
                                    strerror(errno));
  }
  if (!WriteFile("/proc/self/setgroups", "deny") ||
      !WriteFile("/proc/self/uid_map", fmt::format("0 {} 1", uid)) ||
      !WriteFile("/proc/self/gid_map", fmt::format("0 {} 1", gid))) {
    return base::FailedPrecondition("not root, and this user's namespace takes no id map");
  }
  return absl::OkStatus();
}

// Leaves the calling thread in a new namespace; its descriptor.
absl::StatusOr<int> EnterNewNamespace() {
  if (unshare(CLONE_NEWNET) != 0) {
    return base::FailedPrecondition("no network namespace is to be had ({})", strerror(errno));
  }
  const int fd = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return base::Unavailable("/proc/thread-self/ns/net: {}", strerror(errno));
  return fd;
}

}  // namespace

TokenBucket BucketFor(double payload_bytes_per_second) {
  constexpr double kBurstSeconds = 1e-3;
  constexpr int64_t kMinBurst = 16 << 10;
  constexpr int64_t kQueue = 16 << 20;
  const double wire = payload_bytes_per_second * kFrameBytes / kPayloadBytes;
  TokenBucket bucket;
  bucket.rate_bits_per_second = std::max<int64_t>(static_cast<int64_t>(wire * 8), 1);
  bucket.burst_bytes = std::max(static_cast<int64_t>(wire * kBurstSeconds), kMinBurst);
  bucket.limit_bytes = kQueue + bucket.burst_bytes;
  return bucket;
}

absl::StatusOr<Network::Kind> Network::ParseKind(std::string_view name) {
  if (name == "auto") return Kind::kAuto;
  if (name == "namespaces") return Kind::kNamespaces;
  if (name == "loopback") return Kind::kLoopback;
  return base::InvalidArgument("network: want auto, namespaces or loopback, got \"{}\"", name);
}

absl::StatusOr<std::unique_ptr<Network>> Network::Create(Kind kind) {
  std::unique_ptr<Network> network(new Network());
  if (kind == Kind::kLoopback) {
    network->note_ = "loopback was asked for";
    return network;
  }
  const auto give_up = [&](const absl::Status& why) -> absl::StatusOr<std::unique_ptr<Network>> {
    if (kind == Kind::kNamespaces) return base::Annotate(why, "network namespaces");
    network->note_ = std::string(base::MessageOf(why));
    return std::move(network);
  };
  network->ip_ = FindProgram("ip");
  network->tc_ = FindProgram("tc");
  if (network->ip_.empty() || network->tc_.empty()) {
    return give_up(base::FailedPrecondition("no program {} (Debian package iproute2)",
                                            network->ip_.empty() ? "ip" : "tc"));
  }
  if (geteuid() != 0) {
    const absl::Status status = BecomeRootOfOwnUsers();
    if (!status.ok()) return give_up(status);
  }
  const auto prefill = EnterNewNamespace();
  if (!prefill.ok()) return give_up(prefill.status());
  // From here on there is no way back to the network we came from: errors end the run.
  network->prefill_namespace_ = *prefill;
  RETURN_IF_ERROR(network->Join());
  return network;
}

std::unique_ptr<Network> Network::AsItIs() {
  std::unique_ptr<Network> network(new Network());
  network->ours_ = false;
  network->note_ = "the link between other machines";
  return network;
}

absl::Status Network::Join() {
  ASSIGN_OR_RETURN(const int own, EnterNewNamespace());
  close(own);  // the thread is in it
  prefill_host_ = kPrefillHost;
  decode_host_ = kDecodeHost;
  const std::string prefill_path = fmt::format("/proc/{}/fd/{}", getpid(), prefill_namespace_);
  RETURN_IF_ERROR(RunIn(-1, {ip_, "link", "add", kDecodeDevice, "type", "veth", "peer", "name",
                             kPrefillDevice, "netns", prefill_path}));
  struct End {
    int network_namespace;
    const char* device;
    const char* host;
  };
  for (const End& end : {End{-1, kDecodeDevice, kDecodeHost},
                         End{prefill_namespace_, kPrefillDevice, kPrefillHost}}) {
    const int in = end.network_namespace;
    RETURN_IF_ERROR(RunIn(in, {ip_, "link", "set", "lo", "up"}));
    RETURN_IF_ERROR(
        RunIn(in, {ip_, "addr", "add", fmt::format("{}/30", end.host), "dev", end.device}));
    RETURN_IF_ERROR(RunIn(in, {ip_, "link", "set", end.device, "up"}));
  }
  return absl::OkStatus();
}

Network::~Network() {
  if (prefill_namespace_ >= 0) close(prefill_namespace_);
}

std::string Network::Describe() const {
  if (!ours_) return "between running daemons, as it is";
  if (!shaped()) return fmt::format("loopback, not shaped: {}", note_);
  return "two network namespaces, veth pair with MTU 1500, tc tbf at both ends";
}

std::string Network::ShortName() const {
  if (!ours_) return "running daemons' own link";
  return shaped() ? "veth pair with tbf" : "loopback, NOT SHAPED";
}

absl::Status Network::RunIn(int network_namespace, const std::vector<std::string>& argv) const {
  ASSIGN_OR_RETURN(const auto result, Capture(argv, network_namespace));
  if (result.first == 0) return absl::OkStatus();
  std::string output = result.second;
  while (!output.empty() && output.back() == '\n') output.pop_back();
  return base::FailedPrecondition(
      "\"{}\" ended with {}: {} (--network=loopback does without namespaces and shaping)",
      fmt::join(argv, " "), result.first, output);
}

absl::Status Network::SetRate(double payload_bytes_per_second) {
  if (!shaped()) {
    if (payload_bytes_per_second == 0) return absl::OkStatus();
    return base::FailedPrecondition("the link cannot be shaped: {}", note_);
  }
  struct End {
    int network_namespace;
    const char* device;
  };
  for (const End& end : {End{-1, kDecodeDevice}, End{prefill_namespace_, kPrefillDevice}}) {
    std::vector<std::string> argv = {tc_, "qdisc", "del", "dev", end.device, "root"};
    if (payload_bytes_per_second > 0) {
      const TokenBucket bucket = BucketFor(payload_bytes_per_second);
      argv = {tc_,
              "qdisc",
              "replace",
              "dev",
              end.device,
              "root",
              "tbf",
              "rate",
              fmt::format("{}bit", bucket.rate_bits_per_second),
              "burst",
              fmt::format("{}", bucket.burst_bytes),
              "limit",
              fmt::format("{}", bucket.limit_bytes)};
    } else if (!filtered_) {
      continue;
    }
    RETURN_IF_ERROR(RunIn(end.network_namespace, argv));
  }
  filtered_ = payload_bytes_per_second > 0;
  return absl::OkStatus();
}

absl::StatusOr<double> Network::MeasureRate(base::Duration duration) const {
  if (!ours_) return base::FailedPrecondition("{} cannot be probed from here", note_);
  return ProbeLink(decode_host_, prefill_namespace_, duration);
}

absl::StatusOr<int64_t> Network::Drops() const {
  int64_t drops = 0;
  if (!filtered_) return drops;
  for (const auto& [in, device] :
       {std::pair(-1, kDecodeDevice), std::pair(prefill_namespace_, kPrefillDevice)}) {
    ASSIGN_OR_RETURN(const auto result,
                     Capture({tc_, "-s", "-j", "qdisc", "show", "dev", device}, in));
    const auto json = nlohmann::json::parse(result.second, nullptr, /*allow_exceptions=*/false);
    if (result.first != 0 || !json.is_array()) {
      return base::Unavailable("tc -s -j qdisc show dev {}: exit status {}, output \"{}\"", device,
                               result.first, result.second);
    }
    for (const auto& qdisc : json) drops += qdisc.value("drops", int64_t{0});
  }
  return drops;
}

}  // namespace smartgen::tools::bench
