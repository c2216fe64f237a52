#include "tools/http_client.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

namespace smartgen::tools {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

constexpr size_t kMaxBody = 64 << 20;
constexpr size_t kReadBytes = 16 << 10;

// Blocking calls with deadlines: each starts one asynchronous operation and runs it to its end
// (beast's own timer only guards those).
class Connection {
 public:
  Connection() : stream_(context_) {}

  absl::Status Connect(const HttpRequest& request) {
    asio::ip::tcp::resolver resolver(context_);
    beast::error_code error;
    const auto endpoints = resolver.resolve(request.url.host, request.url.port, error);
    if (!error) {
      stream_.expires_after(request.connect_timeout);
      error = Wait([&](auto done) {
        stream_.async_connect(endpoints, [done](beast::error_code e, const auto&) { done(e); });
      });
    }
    return Explain(error, "connecting to", request);
  }

  absl::Status Write(const HttpRequest& request, http::request<http::string_body>& message) {
    stream_.expires_after(request.silence_timeout);
    return Explain(Wait([&](auto done) {
                     http::async_write(stream_, message,
                                       [done](beast::error_code e, size_t) { done(e); });
                   }),
                   "sending to", request);
  }

  absl::StatusOr<HttpResponse> Read(const HttpRequest& request,
                                    const std::function<bool(std::string_view)>& on_data) {
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    beast::flat_buffer buffer;
    stream_.expires_after(request.silence_timeout);
    beast::error_code error = Wait([&](auto done) {
      http::async_read_header(stream_, buffer, parser,
                              [done](beast::error_code e, size_t) { done(e); });
    });
    RETURN_IF_ERROR(Explain(error, "waiting for", request));
    HttpResponse response;
    response.status = static_cast<int>(parser.get().result_int());
    const bool streamed = on_data != nullptr && response.status / 100 == 2;
    std::vector<char> piece(kReadBytes);
    while (!parser.is_done()) {
      parser.get().body().data = piece.data();
      parser.get().body().size = piece.size();
      stream_.expires_after(request.silence_timeout);
      error = Wait([&](auto done) {
        http::async_read_some(stream_, buffer, parser,
                              [done](beast::error_code e, size_t) { done(e); });
      });
      if (error == http::error::need_buffer) error = {};
      RETURN_IF_ERROR(Explain(error, "reading from", request));
      const std::string_view got(piece.data(), piece.size() - parser.get().body().size);
      if (got.empty()) continue;
      if (streamed) {
        if (!on_data(got)) return response;
        continue;
      }
      if (response.body.size() + got.size() > kMaxBody) {
        return base::ResourceExhausted("{}:{} answers with more than {} bytes", request.url.host,
                                       request.url.port, kMaxBody);
      }
      response.body.append(got);
    }
    return response;
  }

 private:
  template <typename Start>
  beast::error_code Wait(Start start) {
    beast::error_code result;
    context_.restart();
    start([&result](beast::error_code error) { result = error; });
    context_.run();
    return result;
  }

  static absl::Status Explain(const beast::error_code& error, std::string_view doing,
                              const HttpRequest& request) {
    if (!error) return absl::OkStatus();
    if (error == beast::error::timeout) {
      return base::DeadlineExceeded("{} {}:{} took too long", doing, request.url.host,
                                    request.url.port);
    }
    return base::Unavailable("{} {}:{}: {}", doing, request.url.host, request.url.port,
                             error.message());
  }

  asio::io_context context_;
  beast::tcp_stream stream_;
};

}  // namespace

absl::StatusOr<Url> ParseUrl(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  if (url.starts_with("https://")) {
    return base::Unimplemented("{}: https is not spoken here; name the gateway's plain address",
                               url);
  }
  if (!url.starts_with(kScheme)) {
    return base::InvalidArgument("want a URL such as http://127.0.0.1:8000, got \"{}\"", url);
  }
  url.remove_prefix(kScheme.size());
  Url out;
  const size_t slash = std::min(url.find('/'), url.size());
  std::string_view authority = url.substr(0, slash);
  out.target = std::string(url.substr(slash));
  while (out.target.ends_with('/')) out.target.pop_back();
  const size_t colon = authority.rfind(':');
  const bool has_port =
      colon != std::string_view::npos && authority.find(']', colon) == std::string_view::npos;
  out.port = has_port ? std::string(authority.substr(colon + 1)) : "80";
  authority = has_port ? authority.substr(0, colon) : authority;
  if (authority.starts_with('[') && authority.ends_with(']')) {
    authority = authority.substr(1, authority.size() - 2);
  }
  out.host = std::string(authority);
  if (out.host.empty() || out.port.empty() ||
      out.port.find_first_not_of("0123456789") != std::string::npos) {
    return base::InvalidArgument("want a URL such as http://127.0.0.1:8000, got \"http://{}\"",
                                 url);
  }
  return out;
}

absl::StatusOr<HttpResponse> Send(const HttpRequest& request,
                                  const std::function<bool(std::string_view)>& on_data) {
  http::request<http::string_body> message;
  message.version(11);
  message.method_string(request.method);
  message.target(request.url.target + request.path);
  message.set(http::field::host, request.url.host + ":" + request.url.port);
  message.set(http::field::connection, "close");
  for (const auto& [name, value] : request.headers) message.set(name, value);
  message.body() = request.body;
  message.prepare_payload();
  Connection connection;
  RETURN_IF_ERROR(connection.Connect(request));
  RETURN_IF_ERROR(connection.Write(request, message));
  return connection.Read(request, on_data);
}

bool EventParser::Push(std::string_view bytes,
                       const std::function<bool(std::string_view)>& on_event) {
  for (const char c : bytes) {
    if (c != '\n') {
      line_ += c;
      continue;
    }
    if (line_.ends_with('\r')) line_.pop_back();
    const std::string line = std::move(line_);
    line_.clear();
    if (!TakeLine(line, on_event)) return false;
  }
  return true;
}

bool EventParser::TakeLine(std::string_view line,
                           const std::function<bool(std::string_view)>& on_event) {
  constexpr std::string_view kData = "data:";
  if (line.empty()) {
    const std::string data = std::move(data_);
    data_.clear();
    return !std::exchange(has_data_, false) || on_event(data);
  }
  if (!line.starts_with(kData)) return true;  // comments, event names, ids
  line.remove_prefix(kData.size());
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += line;
  has_data_ = true;
  return true;
}

}  // namespace smartgen::tools
