#include "common/transfer/message_trace.h"

#include <utility>

#include "common/transfer/blocks.h"

namespace smartgen::transfer {
namespace {

using trace::Kind;

Kind KindOf(Path path, bool sent) {
  switch (path) {
    case Path::kFull:
      return sent ? Kind::kSentFull : Kind::kReceivedFull;
    case Path::kProactive:
      return sent ? Kind::kSentProactive : Kind::kReceivedProactive;
    case Path::kOnDemand:
      return sent ? Kind::kSentOnDemand : Kind::kReceivedOnDemand;
    case Path::kSpeculative:
      return sent ? Kind::kSentSpeculative : Kind::kReceivedSpeculative;
    case Path::kMetadata:
      return sent ? Kind::kSentMetadata : Kind::kReceivedMetadata;
    case Path::kHandover:
      return sent ? Kind::kSentHandover : Kind::kReceivedHandover;
  }
  return sent ? Kind::kSentFull : Kind::kReceivedFull;
}

}  // namespace

std::function<void(const MovedMessage&)> TraceMessages(trace::TracePtr trace, bool sent,
                                                       int64_t tokens) {
  if (trace == nullptr) return nullptr;
  return [trace = std::move(trace), sent, tokens](const MovedMessage& message) {
    const auto bytes = static_cast<int64_t>(message.bytes);
    trace::Args args = {message.layer, -1, message.tokens, bytes};
    if (message.path == Path::kHandover) {
      args = {message.layer, static_cast<int64_t>(message.step), 0, bytes};
    } else if (message.first_token < tokens) {  // a token that was born later is in no block
      args[1] = BlockOf(message.first_token, tokens);
    }
    trace->Add(KindOf(message.path, sent), message.begun, message.ended, args);
  };
}

}  // namespace smartgen::transfer
