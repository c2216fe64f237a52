// What decoded tells a traced request's trace. Each function does nothing for one that is not
// traced. Engine's thread only.
#pragma once

#include "common/executor/executor.h"
#include "decode_server/request.h"

namespace smartgen::decode_server {

// Before the request goes to `next`.
void TraceState(const Request& request, RequestState next);
// A cohort has begun a step for it.
void TraceStepBegun(Request& request);
// The cohort's step is made.
void TraceStepRead(const Request& request, const executor::SlotRead& read);
// The answer to the step that was handed over has come.
void TraceAnswer(Request& request);
// A token is about to be delivered.
void TraceToken(const Request& request);
// Another prefill instance is asked.
void TraceAttempt(const Request& request);
// What a request did last: numbers of its statistics, as notes.
void TraceStats(const Request& request);

}  // namespace smartgen::decode_server
