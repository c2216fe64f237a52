// Our types to the messages of proto/ and back. What comes from outside is checked here as far as
// it can be without a model (sizes, ranges of enums); SamplingParams::Check(vocab_size) is the
// caller's.
#pragma once

#include <string>
#include <string_view>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/kv/layout.h"
#include "common/sampling/sampler.h"
#include "common/transfer/mode.h"
#include "common/transfer/request_options.h"

namespace smartgen::v1 {
enum Mode : int;
class GeneratedToken;
class KvLayout;
class SamplingParams;
class TransferOptions;
}  // namespace smartgen::v1

namespace smartgen::rpc {

// As many as a vocabulary may hold is never needed; OpenAI allows 300.
inline constexpr int kMaxLogitBias = 4096;
inline constexpr int kMaxEosIds = 256;
inline constexpr int kMaxForcedIds = 4096;

void ToProto(const kv::KvLayout& layout, v1::KvLayout* proto);
// InvalidArgument names the field. The result has passed KvLayout::Check.
absl::StatusOr<kv::KvLayout> FromProto(const v1::KvLayout& proto);

void ToProto(const sampling::SamplingParams& params, v1::SamplingParams* proto);
absl::StatusOr<sampling::SamplingParams> FromProto(const v1::SamplingParams& proto);

void ToProto(const sampling::SampledToken& token, v1::GeneratedToken* proto);
absl::StatusOr<sampling::SampledToken> FromProto(const v1::GeneratedToken& proto);

v1::Mode ToProto(transfer::Mode mode);
// `fallback` where none is named; InvalidArgument for one that is not known.
absl::StatusOr<transfer::Mode> FromProto(v1::Mode mode, transfer::Mode fallback);

void ToProto(transfer::Handover handover, v1::TransferOptions* proto);
void ToProto(const transfer::RequestOptions& options, v1::TransferOptions* proto);
// What the message leaves open is `defaults`'. The result has passed RequestOptions::Check.
absl::StatusOr<transfer::RequestOptions> FromProto(const v1::TransferOptions& proto,
                                                   const transfer::RequestOptions& defaults);

// 16 bytes, big endian, so that the hex digits in logs are the bytes' order.
std::string TransferIdBytes(const base::TransferId& id);
// InvalidArgument: not 16 bytes, or all zero.
absl::StatusOr<base::TransferId> ParseTransferId(std::string_view bytes);

}  // namespace smartgen::rpc
