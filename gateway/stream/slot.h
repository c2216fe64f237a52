// Internal to the stream: one choice of a request and the call that generates it.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "gateway/openai/request.h"
#include "gateway/openai/response.h"
#include "gateway/router/router.h"
#include "gateway/stream/choice.h"
#include "proto/decode.pb.h"

namespace smartgen::gateway {

struct Slot {
  Slot(int index, Choice choice) : index(index), choice(std::move(choice)) {}

  int index;  // prompt * n + choice of that prompt
  Choice choice;
  int64_t max_tokens = 0;

  // Calls follow each other; events of an earlier one are told by its attempt.
  std::shared_ptr<BackendCall> call;
  int attempt = 0;
  std::set<std::string> tried;
  absl::Status last_error;
  int64_t resumptions = 0;
  bool admitted = false;

  bool role_sent = false;
  bool done = false;
  FinishedChoice answer;
  v1::RequestStats stats;

  base::TimePoint last_token;
  base::TimePoint first_shown;  // after the write that carried token 1
  bool ttft_due = false;
  bool ttst_due = false;
  std::optional<double> ttft_seconds;
  std::optional<double> ttst_seconds;
};

ServingInfo ServingInfoOf(const Slot& slot);
// "auto", "full", "local"; empty for unspecified.
std::string ModeName(v1::Mode mode);
void SetTransfer(const TransferChoice& choice, v1::TransferOptions& out);

}  // namespace smartgen::gateway
