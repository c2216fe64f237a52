#include "tests/gateway/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

namespace smartgen::gateway::testing {

std::vector<std::string> RawResponse::Events() const {
  std::vector<std::string> events;
  size_t at = 0;
  while (at < body.size()) {
    const size_t end = body.find("\n\n", at);
    if (end == std::string::npos) break;
    const std::string block = body.substr(at, end - at);
    if (block.compare(0, 6, "data: ") == 0) events.push_back(block.substr(6));
    at = end + 2;
  }
  return events;
}

RawClient::RawClient(int port) {
  fd_ = socket(AF_INET, SOCK_STREAM, 0);
  const timeval patience{15, 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) Close();
}

RawClient::~RawClient() { Close(); }

void RawClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void RawClient::HalfClose() { shutdown(fd_, SHUT_WR); }

bool RawClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

bool RawClient::Fill() {
  char bytes[16384];
  const ssize_t n = recv(fd_, bytes, sizeof bytes, 0);
  if (n <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(n));
  return true;
}

bool RawClient::ReadUntil(std::string_view text) {
  while (buffer_.find(text) == std::string::npos) {
    if (!Fill()) return false;
  }
  return true;
}

bool RawClient::AtEnd() {
  while (Fill()) {
  }
  return errno != EAGAIN && errno != EWOULDBLOCK;
}

RawResponse RawClient::Read(bool head_request) {
  RawResponse out;
  if (!ReadUntil("\r\n\r\n")) return out;
  const size_t head_end = buffer_.find("\r\n\r\n");
  const std::string head = buffer_.substr(0, head_end + 2);
  buffer_.erase(0, head_end + 4);
  out.status = std::stoi(head.substr(9, 3));
  for (size_t at = head.find("\r\n") + 2; at < head.size();) {
    const size_t end = head.find("\r\n", at);
    const size_t colon = head.find(": ", at);
    std::string name = head.substr(at, colon - at);
    std::transform(name.begin(), name.end(), name.begin(), ::tolower);
    out.headers[name] = head.substr(colon + 2, end - colon - 2);
    at = end + 2;
  }
  if (out.headers.contains("transfer-encoding")) {
    for (;;) {
      if (!ReadUntil("\r\n")) return out;
      const size_t line = buffer_.find("\r\n");
      const size_t size = std::stoul(buffer_.substr(0, line), nullptr, 16);
      while (buffer_.size() < line + 2 + size + 2) {
        if (!Fill()) return out;
      }
      out.body += buffer_.substr(line + 2, size);
      buffer_.erase(0, line + 2 + size + 2);
      if (size == 0) break;
    }
  } else if (out.headers.contains("content-length")) {
    const size_t size = head_request ? 0 : std::stoul(out.headers["content-length"]);
    while (buffer_.size() < size) {
      if (!Fill()) return out;
    }
    out.body = buffer_.substr(0, size);
    buffer_.erase(0, size);
  } else if (out.status >= 200 && out.status != 204) {
    while (Fill()) {
    }
    out.body = std::move(buffer_);
  }
  out.complete = true;
  return out;
}

std::string PostText(const std::string& path, const std::string& body,
                     const std::string& extra_headers) {
  return "POST " + path + " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n" +
         extra_headers + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

RawResponse Post(int port, const std::string& path, const std::string& body,
                 const std::string& extra_headers) {
  RawClient client(port);
  client.Send(PostText(path, body, extra_headers));
  return client.Read();
}

RawResponse Get(int port, const std::string& path, const std::string& extra_headers) {
  RawClient client(port);
  client.Send("GET " + path + " HTTP/1.1\r\nHost: test\r\n" + extra_headers + "\r\n");
  return client.Read();
}

}  // namespace smartgen::gateway::testing
