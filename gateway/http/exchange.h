// One request and its answer, as a handler's coroutine sees it.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <functional>
#include <string>

#include "gateway/http/types.h"

namespace smartgen::gateway {

enum class Interruption {
  kClientGone,  // the connection has ended: nothing that is written arrives
  kShutdown,    // the server stops: say so and end
};

// All methods belong to the handler's coroutine. Either Respond once, or BeginStream, Write*,
// EndStream. Writes are bounded by the server's write timeout; false means that the client is gone.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual boost::asio::any_io_executor executor() = 0;
  // The client is watched in every state. Called on the executor, at most once a kind; at once if
  // it has happened already.
  virtual void OnInterruption(std::function<void(Interruption)> callback) = 0;

  virtual boost::asio::awaitable<bool> Respond(HttpResponse response) = 0;
  // Sends the head (body ignored); chunked where the client's HTTP version has that.
  virtual boost::asio::awaitable<bool> BeginStream(HttpResponse head) = 0;
  virtual boost::asio::awaitable<bool> Write(std::string data) = 0;
  // A well-formed end. Without it the connection is cut, so that the client sees a broken stream.
  virtual boost::asio::awaitable<bool> EndStream() = 0;
  // The connection ends with this answer.
  virtual void CloseAfterwards() = 0;
};

}  // namespace smartgen::gateway
