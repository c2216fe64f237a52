// Streams of the gRPC callback API with a queue in front: any thread may push a message at any
// time, messages go out in order, and none of the calls blocks.
//
// A stream keeps itself alive until gRPC is done with it; others may hold it longer and go on
// calling it without effect. When gRPC is done with it, it drops its callbacks and all that they
// capture, so owners may hold their stream and be captured in its callbacks. gRPC's Start* and
// Finish are never called with a lock held, since their reactions may run inline.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/server_callback.h>

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "common/base/mutex.h"
#include "common/rpc/open_calls.h"

namespace smartgen::rpc {

// The sending half. Reactor is one of gRPC's reactors that write Out.
template <typename Reactor, typename Out>
class QueuedWriter : public Reactor {
 public:
  // Dropped after Close or when the stream has broken.
  void Push(Out message) {
    {
      base::MutexLock lock(mutex_);
      if (closing_ || broken_) return;
      queue_.push_back(std::move(message));
      if (writing_) return;
      writing_ = true;
    }
    WriteNext();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      base::MutexLock lock(mutex_);
      broken_ = true;
      queue_.clear();
    }
    WriteNext();
  }

 protected:
  // Ends the stream after what was pushed. Only the first call counts.
  void CloseWith(const grpc::Status& status) {
    {
      base::MutexLock lock(mutex_);
      if (closing_) return;
      closing_ = true;
      status_ = status;
      if (writing_) return;
      writing_ = true;  // nobody else writes from here on
    }
    Terminate(status);
  }
  bool closing() {
    base::MutexLock lock(mutex_);
    return closing_;
  }
  // Called once, when nothing is being written and nothing will be.
  virtual void Terminate(const grpc::Status& status) = 0;

 private:
  // The caller owns writing_.
  void WriteNext() {
    bool terminate = false;
    {
      base::MutexLock lock(mutex_);
      if (queue_.empty()) {
        if (!closing_) {
          writing_ = false;
          return;
        }
        terminate = true;
      } else {
        current_ = std::move(queue_.front());
        queue_.pop_front();
      }
    }
    if (terminate) {
      Terminate(status_);
    } else {
      this->StartWrite(&current_);
    }
  }

  base::Mutex mutex_;
  std::deque<Out> queue_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  Out current_;          // owned by who owns writing_
  grpc::Status status_;  // set before closing_
};

// A server's answer that consists of many messages. Whoever makes it must call Finish in the end,
// also after a cancel.
template <typename Out>
class ServerEventStream final : public QueuedWriter<grpc::ServerWriteReactor<Out>, Out> {
 public:
  // `on_cancel`: the client is gone or the deadline has passed; called at most once. `open` counts
  // the stream until gRPC is done with it, and outlives it.
  static std::shared_ptr<ServerEventStream> Create(std::function<void()> on_cancel,
                                                   OpenCalls* open) {
    auto stream =
        std::shared_ptr<ServerEventStream>(new ServerEventStream(std::move(on_cancel), open));
    stream->self_ = stream;
    open->Add();
    return stream;
  }
  void End(const grpc::Status& status) { this->CloseWith(status); }

  void OnCancel() override { on_cancel_(); }
  void OnDone() override {
    OpenCalls* const open = open_;
    on_cancel_ = nullptr;
    self_.reset();
    open->Remove();
  }

 private:
  ServerEventStream(std::function<void()> on_cancel, OpenCalls* open)
      : on_cancel_(std::move(on_cancel)), open_(open) {}
  void Terminate(const grpc::Status& status) override { this->Finish(status); }

  std::function<void()> on_cancel_;
  OpenCalls* const open_;
  std::shared_ptr<ServerEventStream> self_;
};

// A server's end of a stream in both directions.
template <typename In, typename Out>
class ServerDuplex final : public QueuedWriter<grpc::ServerBidiReactor<In, Out>, Out> {
 public:
  struct Events {
    // One at a time.
    std::function<void(ServerDuplex& stream, const In& message)> on_message;
    // The client has gone or closed, or the stream broke, or End was called. Once; no message
    // follows. The stream ends by itself.
    std::function<void()> on_closed;
  };
  static std::shared_ptr<ServerDuplex> Create(Events events) {
    auto stream = std::shared_ptr<ServerDuplex>(new ServerDuplex(std::move(events)));
    stream->self_ = stream;
    stream->StartRead(&stream->incoming_);
    return stream;
  }
  void End(const grpc::Status& status) { this->CloseWith(status); }

  void OnReadDone(bool ok) override {
    if (ok) {
      events_.on_message(*this, incoming_);
      if (!this->closing()) {
        this->StartRead(&incoming_);
        return;
      }
    }
    events_.on_closed();
    this->CloseWith(grpc::Status::OK);
  }
  void OnCancel() override {}  // a read fails as well
  void OnDone() override {
    events_ = {};
    self_.reset();
  }

 private:
  explicit ServerDuplex(Events events) : events_(std::move(events)) {}
  void Terminate(const grpc::Status& status) override { this->Finish(status); }

  Events events_;
  In incoming_;
  std::shared_ptr<ServerDuplex> self_;
};

// A client's end of a stream in both directions.
template <typename Out, typename In>
class ClientDuplex final : public QueuedWriter<grpc::ClientBidiReactor<Out, In>, Out> {
 public:
  struct Events {
    std::function<void(const In& message)> on_message;          // one at a time
    std::function<void(const grpc::Status& status)> on_closed;  // once, last
  };
  // `begin` starts the call: [&](grpc::ClientContext* c, auto* reactor) { stub->async()->Connect(c,
  // reactor); }
  template <typename Begin>
  static std::shared_ptr<ClientDuplex> Start(Events events, Begin begin) {
    auto stream = std::shared_ptr<ClientDuplex>(new ClientDuplex(std::move(events)));
    stream->self_ = stream;
    begin(&stream->context_, stream.get());
    stream->AddHold();  // Push starts writes from outside of reactions
    stream->StartRead(&stream->incoming_);
    stream->StartCall();
    return stream;
  }
  // Drops the stream at once. on_closed follows.
  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (ok) {
      events_.on_message(incoming_);
      this->StartRead(&incoming_);
      return;
    }
    this->CloseWith(grpc::Status::OK);
  }
  void OnDone(const grpc::Status& status) override {
    events_.on_closed(status);
    events_ = {};
    self_.reset();
  }

 private:
  explicit ClientDuplex(Events events) : events_(std::move(events)) {}
  void Terminate(const grpc::Status&) override { this->RemoveHold(); }

  grpc::ClientContext context_;
  Events events_;
  In incoming_;
  std::shared_ptr<ClientDuplex> self_;
};

// A client's call that is answered by many messages.
template <typename In>
class ClientEventStream final : public grpc::ClientReadReactor<In> {
 public:
  struct Events {
    std::function<void(const In& message)> on_message;          // one at a time
    std::function<void(const grpc::Status& status)> on_closed;  // once, last
  };
  // `begin` sets the deadline and starts the call.
  template <typename Begin>
  static std::shared_ptr<ClientEventStream> Start(Events events, Begin begin) {
    auto stream = std::shared_ptr<ClientEventStream>(new ClientEventStream(std::move(events)));
    stream->self_ = stream;
    begin(&stream->context_, stream.get());
    stream->StartRead(&stream->incoming_);
    stream->StartCall();
    return stream;
  }
  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    events_.on_message(incoming_);
    this->StartRead(&incoming_);
  }
  void OnDone(const grpc::Status& status) override {
    events_.on_closed(status);
    events_ = {};
    self_.reset();
  }

 private:
  explicit ClientEventStream(Events events) : events_(std::move(events)) {}

  grpc::ClientContext context_;
  Events events_;
  In incoming_;
  std::shared_ptr<ClientEventStream> self_;
};

}  // namespace smartgen::rpc
