// Whether some path makes a token, shown by making one.
//
// Requests that succeed count as proof; while there are none, a one-token generation is made at
// every probe_interval, and soon after anything has failed. Thread-safe.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "gateway/gateway_metrics.h"
#include "gateway/http/mailbox.h"
#include "gateway/model.h"
#include "gateway/openai/error.h"
#include "gateway/router/router.h"

namespace smartgen::gateway {

class Readiness {
 public:
  struct Options {
    base::Duration interval = std::chrono::seconds(10);
    base::Duration retry = std::chrono::seconds(1);
    base::Duration timeout = std::chrono::seconds(30);
  };
  // All pointers outlive this.
  Readiness(Options options, const ServedModel* model, Router* router, GatewayMetrics* metrics,
            const base::Clock* clock);

  // Begins probing on `executor`, whose context must end before this does.
  void Start(boost::asio::any_io_executor executor);
  // No more probes; the loop ends by itself.
  void Stop();
  void NoteSuccess(const v1::RequestStats& stats, const std::string& decode_address);
  void NoteFailure(const absl::Status& status);

  bool ready() const;
  // {"status", "path", "mode", "degraded": [...], "error"}.
  Json Report(bool draining) const;

 private:
  struct Note {
    std::optional<v1::GenerateEvent> event;
    std::optional<absl::Status> end;
  };
  using Inbox = Mailbox<Note>;
  boost::asio::awaitable<void> Loop(std::shared_ptr<Mailbox<int>> wake,
                                    boost::asio::any_io_executor executor);
  boost::asio::awaitable<void> Probe(boost::asio::any_io_executor executor);
  v1::GenerateRequest ProbeRequest() const;
  void Refused(const absl::Status& status);
  base::Duration UntilProbe() const;
  std::string PathName(const v1::RequestStats& stats, const std::string& decode_address) const;

  const Options options_;
  const ServedModel* const model_;
  Router* const router_;
  GatewayMetrics* const metrics_;
  const base::Clock* const clock_;

  mutable base::Mutex mutex_;
  std::shared_ptr<Mailbox<int>> wake_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  bool suspect_ ABSL_GUARDED_BY(mutex_) = false;  // something failed since the last proof
  std::string error_ ABSL_GUARDED_BY(mutex_) = "no generation was tried yet";
  std::string path_ ABSL_GUARDED_BY(mutex_);
  std::string mode_ ABSL_GUARDED_BY(mutex_);
  std::string fallback_ ABSL_GUARDED_BY(mutex_);
  base::TimePoint last_proof_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace smartgen::gateway
