// One client connection: reads requests one after the other, watches for the client's end while one
// is handled.
#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <vector>

#include "gateway/http/server.h"

namespace smartgen::gateway {

// What connections share with their server.
struct ConnectionContext {
  HttpServer::Options options;
  HttpServer::Handlers handlers;
  const base::Clock* clock = nullptr;
  std::atomic<bool> draining{false};
  std::atomic<int64_t> connections{0};
  std::atomic<int64_t> body_bytes{0};
  std::atomic<int64_t> busy{0};
};

// Everything runs on the socket's executor, which must be a strand.
class Connection final : public Exchange, public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  Connection(Socket socket, std::shared_ptr<ConnectionContext> context);
  ~Connection() override;

  // Until the connection ends. Never throws.
  boost::asio::awaitable<void> Run();
  // These three: from any thread.
  void CloseIfIdle();
  void Interrupt();
  void Close();

  boost::asio::any_io_executor executor() override { return socket_.get_executor(); }
  void OnInterruption(std::function<void(Interruption)> callback) override;
  boost::asio::awaitable<bool> Respond(HttpResponse response) override;
  boost::asio::awaitable<bool> BeginStream(HttpResponse head) override;
  boost::asio::awaitable<bool> Write(std::string data) override;
  boost::asio::awaitable<bool> EndStream() override;
  void CloseAfterwards() override { keep_alive_ = false; }

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  enum class Next { kAnotherRequest, kClose, kLinger };

  boost::asio::awaitable<Next> ServeOne();
  boost::asio::awaitable<bool> AwaitFirstByte();
  boost::asio::awaitable<Next> RefuseUnreadable(boost::system::error_code error);
  boost::asio::awaitable<Next> ReadBodyAndHandle(Parser& parser);
  boost::asio::awaitable<bool> ReadBody(Parser& parser, boost::system::error_code& error);
  boost::asio::awaitable<Next> Handle(bool keep_alive);
  boost::asio::awaitable<void> CallHandler();
  boost::asio::awaitable<void> Watch();
  boost::asio::awaitable<void> StopWatch();
  boost::asio::awaitable<bool> WriteRaw(std::string data);
  boost::asio::awaitable<void> Linger();

  std::string FormatHead(const HttpResponse& response, bool stream) const;
  // Reads are cut by cancelling (an answer may still follow), writes by closing.
  enum class OnTimeout { kCancel, kClose };
  void Arm(base::Duration duration, OnTimeout action);
  void Disarm();
  void TellInterruption(Interruption what);

  std::shared_ptr<ConnectionContext> context_;
  Socket socket_;
  boost::beast::flat_buffer buffer_;
  boost::asio::steady_timer guard_;
  boost::asio::steady_timer watch_ended_;
  uint64_t guard_generation_ = 0;
  bool timed_out_ = false;

  bool idle_ = true;
  bool any_request_ = false;
  bool reading_body_ = false;
  bool watching_ = false;
  bool watch_running_ = false;
  bool client_gone_ = false;
  bool shutdown_ = false;
  bool told_gone_ = false;
  bool told_shutdown_ = false;
  std::function<void(Interruption)> on_interruption_;

  // Of the request at hand.
  HttpRequest request_;
  bool http10_ = false;
  bool keep_alive_ = false;
  bool head_sent_ = false;
  bool streaming_ = false;
  bool complete_ = false;
};

}  // namespace smartgen::gateway
