// HTTP by hand over a plain socket, so that tests can send what no library would.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

namespace smartgen::gateway::testing {

struct RawResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  bool complete = false;                       // ended as HTTP says, not by a cut
  nlohmann::ordered_json Json() const { return nlohmann::ordered_json::parse(body); }
  // The data of a server-sent event stream, "[DONE]" included.
  std::vector<std::string> Events() const;
};

class RawClient {
 public:
  explicit RawClient(int port);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool Send(std::string_view bytes);
  // Reads one response; status 0 if the connection ended first. 15 s at most.
  RawResponse Read(bool head_request = false);
  // Reads until `text` has come; false if the connection ended or 15 s passed. Read goes on from
  // there as if nothing had been read.
  bool ReadUntil(std::string_view text);
  // Nothing more comes: the server has closed.
  bool AtEnd();
  void Close();
  void HalfClose();

 private:
  bool Fill();
  int fd_ = -1;
  std::string buffer_;
};

std::string PostText(const std::string& path, const std::string& body,
                     const std::string& extra_headers = "");
RawResponse Post(int port, const std::string& path, const std::string& body,
                 const std::string& extra_headers = "");
RawResponse Get(int port, const std::string& path, const std::string& extra_headers = "");

}  // namespace smartgen::gateway::testing
