// An HTTP server of one answer.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "tools/http_client.h"

namespace smartgen::tools {

// Answers one connection with fixed bytes, and keeps what it was asked.
class OneShotServer {
 public:
  // Keeps the connection open after `answer` until the test ends if `hang`.
  explicit OneShotServer(std::string answer, bool hang = false) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    bind(listener_, reinterpret_cast<sockaddr*>(&address), size);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    listen(listener_, 1);
    thread_ = std::thread([this, answer = std::move(answer), hang] {
      const int fd = accept(listener_, nullptr, nullptr);
      char buffer[4096];
      while (!Complete()) {
        const ssize_t n = recv(fd, buffer, sizeof(buffer), 0);
        if (n <= 0) break;
        request_.append(buffer, static_cast<size_t>(n));
      }
      if (send(fd, answer.data(), answer.size(), MSG_NOSIGNAL) < 0) request_ += " (send failed)";
      if (hang) {
        // Until the client gives up.
        while (recv(fd, buffer, sizeof(buffer), 0) > 0) {
        }
      }
      close(fd);
    });
  }
  ~OneShotServer() {
    if (thread_.joinable()) thread_.join();
    close(listener_);
  }
  std::string Asked() {
    thread_.join();
    return request_;
  }
  int port() const { return port_; }
  HttpRequest Request() const {
    HttpRequest request;
    request.url = *ParseUrl(fmt::format("http://127.0.0.1:{}/base/", port_));
    request.path = "/x";
    return request;
  }

 private:
  // Header and body have come.
  bool Complete() const {
    const size_t end = request_.find("\r\n\r\n");
    if (end == std::string::npos) return false;
    const size_t at = request_.find("Content-Length: ");
    const size_t length = at < end ? std::stoul(request_.substr(at + 16)) : 0;
    return request_.size() >= end + 4 + length;
  }

  int listener_;
  int port_;
  std::string request_;
  std::thread thread_;
};

}  // namespace smartgen::tools
