// Messages of a transfer as events of a request's trace.
#pragma once

#include <cstdint>
#include <functional>

#include "common/trace/trace.h"
#include "common/transfer/transfer.h"

namespace smartgen::transfer {

// What SendSpec::on_message (`sent`) or ReceiveSpec::on_message is set to. `tokens`: of the whole
// prompt, by which relative blocks are counted. Null if `trace` is.
std::function<void(const MovedMessage&)> TraceMessages(trace::TracePtr trace, bool sent,
                                                       int64_t tokens);

}  // namespace smartgen::transfer
