#include "common/rpc/convert.h"

#include "proto/common.pb.h"

namespace smartgen::rpc {
namespace {

constexpr int kMaxLayers = 1024;     // KvLayout::Check's limit; here before anything is allocated
constexpr int kMaxTopLogprobs = 20;  // as SamplingParams::logprobs

}  // namespace

void ToProto(const kv::KvLayout& layout, v1::KvLayout* proto) {
  proto->Clear();
  for (const kv::LayerLayout& layer : layout.layers) {
    v1::LayerLayout* out = proto->add_layers();
    out->set_kv_heads(layer.kv_heads);
    out->set_head_dim(layer.head_dim);
    out->set_window(layer.window);
  }
  proto->set_dtype(std::string(kv::DTypeName(layout.dtype)));
  proto->set_token_capacity(layout.token_capacity);
  proto->set_page_tokens(kv::kPageTokens);
}

absl::StatusOr<kv::KvLayout> FromProto(const v1::KvLayout& proto) {
  if (proto.layers_size() > kMaxLayers) {
    return base::InvalidArgument("KV layout: {} layers, want at most {}", proto.layers_size(),
                                 kMaxLayers);
  }
  if (proto.page_tokens() != kv::kPageTokens) {
    return base::InvalidArgument("KV layout: page_tokens {}, want {}", proto.page_tokens(),
                                 kv::kPageTokens);
  }
  kv::KvLayout layout;
  ASSIGN_OR_RETURN(layout.dtype, kv::ParseDType(proto.dtype()));
  layout.token_capacity = proto.token_capacity();
  for (const v1::LayerLayout& layer : proto.layers()) {
    layout.layers.push_back({layer.kv_heads(), layer.head_dim(), layer.window()});
  }
  RETURN_IF_ERROR(layout.Check());
  return layout;
}

void ToProto(const sampling::SamplingParams& params, v1::SamplingParams* proto) {
  proto->Clear();
  proto->set_temperature(params.temperature);
  proto->set_top_p(params.top_p);
  proto->set_top_k(params.top_k);
  proto->set_min_p(params.min_p);
  proto->set_presence_penalty(params.presence_penalty);
  proto->set_frequency_penalty(params.frequency_penalty);
  proto->set_repetition_penalty(params.repetition_penalty);
  proto->set_seed(params.seed);
  for (const auto& [id, bias] : params.logit_bias) {
    v1::LogitBias* out = proto->add_logit_bias();
    out->set_token_id(id);
    out->set_bias(bias);
  }
  proto->set_logprobs(params.logprobs);
  proto->mutable_eos_ids()->Add(params.eos_ids.begin(), params.eos_ids.end());
  proto->set_min_tokens(params.min_tokens);
  proto->set_ignore_eos(params.ignore_eos);
  proto->mutable_forced_ids()->Add(params.forced_ids.begin(), params.forced_ids.end());
}

absl::StatusOr<sampling::SamplingParams> FromProto(const v1::SamplingParams& proto) {
  if (proto.logit_bias_size() > kMaxLogitBias) {
    return base::InvalidArgument("sampling: {} entries in logit_bias, want at most {}",
                                 proto.logit_bias_size(), kMaxLogitBias);
  }
  if (proto.eos_ids_size() > kMaxEosIds) {
    return base::InvalidArgument("sampling: {} eos_ids, want at most {}", proto.eos_ids_size(),
                                 kMaxEosIds);
  }
  if (proto.forced_ids_size() > kMaxForcedIds) {
    return base::InvalidArgument("sampling: {} forced_ids, want at most {}",
                                 proto.forced_ids_size(), kMaxForcedIds);
  }
  sampling::SamplingParams params;
  params.temperature = proto.temperature();
  params.top_p = proto.top_p();
  params.top_k = proto.top_k();
  params.min_p = proto.min_p();
  params.presence_penalty = proto.presence_penalty();
  params.frequency_penalty = proto.frequency_penalty();
  params.repetition_penalty = proto.repetition_penalty();
  params.seed = proto.seed();
  for (const v1::LogitBias& bias : proto.logit_bias()) {
    params.logit_bias.emplace_back(bias.token_id(), bias.bias());
  }
  params.logprobs = proto.logprobs();
  params.eos_ids.assign(proto.eos_ids().begin(), proto.eos_ids().end());
  params.min_tokens = proto.min_tokens();
  params.ignore_eos = proto.ignore_eos();
  params.forced_ids.assign(proto.forced_ids().begin(), proto.forced_ids().end());
  return params;
}

void ToProto(const sampling::SampledToken& token, v1::GeneratedToken* proto) {
  proto->Clear();
  proto->set_token_id(token.id);
  proto->set_logprob(token.logprob);
  for (const sampling::TokenLogprob& top : token.top) {
    v1::TokenLogprob* out = proto->add_top_logprobs();
    out->set_token_id(top.id);
    out->set_logprob(top.logprob);
  }
}

absl::StatusOr<sampling::SampledToken> FromProto(const v1::GeneratedToken& proto) {
  if (proto.top_logprobs_size() > kMaxTopLogprobs) {
    return base::InvalidArgument("token: {} top_logprobs, want at most {}",
                                 proto.top_logprobs_size(), kMaxTopLogprobs);
  }
  sampling::SampledToken token;
  token.id = proto.token_id();
  token.logprob = proto.logprob();
  for (const v1::TokenLogprob& top : proto.top_logprobs()) {
    token.top.push_back({top.token_id(), top.logprob()});
  }
  return token;
}

v1::Mode ToProto(transfer::Mode mode) {
  switch (mode) {
    case transfer::Mode::kAuto:
      return v1::MODE_AUTO;
    case transfer::Mode::kFull:
      return v1::MODE_FULL;
    case transfer::Mode::kLocal:
      return v1::MODE_LOCAL;
    case transfer::Mode::kExact:
      return v1::MODE_EXACT;
    case transfer::Mode::kSmartGen:
      return v1::MODE_SMARTGEN;
    case transfer::Mode::kPartial:
      return v1::MODE_PARTIAL;
    case transfer::Mode::kRandom:
      return v1::MODE_RANDOM;
  }
  return v1::MODE_UNSPECIFIED;
}

absl::StatusOr<transfer::Mode> FromProto(v1::Mode mode, transfer::Mode fallback) {
  switch (mode) {
    case v1::MODE_UNSPECIFIED:
      return fallback;
    case v1::MODE_AUTO:
      return transfer::Mode::kAuto;
    case v1::MODE_FULL:
      return transfer::Mode::kFull;
    case v1::MODE_LOCAL:
      return transfer::Mode::kLocal;
    case v1::MODE_EXACT:
      return transfer::Mode::kExact;
    case v1::MODE_SMARTGEN:
      return transfer::Mode::kSmartGen;
    case v1::MODE_PARTIAL:
      return transfer::Mode::kPartial;
    case v1::MODE_RANDOM:
      return transfer::Mode::kRandom;
    default:
      return base::InvalidArgument("mode: want one of {} to {}, got {}",
                                   static_cast<int>(v1::Mode_MIN), static_cast<int>(v1::Mode_MAX),
                                   static_cast<int>(mode));
  }
}

void ToProto(transfer::Handover handover, v1::TransferOptions* proto) {
  switch (handover) {
    case transfer::Handover::kAuto:
      return proto->set_handover(v1::TransferOptions::HANDOVER_AUTO);
    case transfer::Handover::kSplit:
      return proto->set_handover(v1::TransferOptions::HANDOVER_SPLIT);
    case transfer::Handover::kAttend:
      return proto->set_handover(v1::TransferOptions::HANDOVER_ATTEND);
    case transfer::Handover::kNone:
      return proto->set_handover(v1::TransferOptions::HANDOVER_NONE);
  }
}

void ToProto(const transfer::RequestOptions& options, v1::TransferOptions* proto) {
  proto->set_selector(options.selector);
  proto->set_selection_budget(options.selection_budget);
  proto->set_speculative_ratio(options.speculative_ratio);
  ToProto(options.handover, proto);
  proto->set_selection(options.selection);
  proto->set_profile(options.profile);
  proto->set_parallel(options.parallel);
  proto->set_prefetch(options.prefetch);
  proto->set_speculation(options.speculation);
}

absl::StatusOr<transfer::RequestOptions> FromProto(const v1::TransferOptions& proto,
                                                   const transfer::RequestOptions& defaults) {
  transfer::RequestOptions options = defaults;
  if (proto.has_selector()) options.selector = proto.selector();
  if (proto.has_selection_budget()) options.selection_budget = proto.selection_budget();
  if (proto.has_speculative_ratio()) options.speculative_ratio = proto.speculative_ratio();
  if (proto.has_selection()) options.selection = proto.selection();
  switch (proto.handover()) {
    case v1::TransferOptions::HANDOVER_UNSPECIFIED:
      break;
    case v1::TransferOptions::HANDOVER_SPLIT:
      options.handover = transfer::Handover::kSplit;
      break;
    case v1::TransferOptions::HANDOVER_ATTEND:
      options.handover = transfer::Handover::kAttend;
      break;
    case v1::TransferOptions::HANDOVER_AUTO:
      options.handover = transfer::Handover::kAuto;
      break;
    case v1::TransferOptions::HANDOVER_NONE:
      options.handover = transfer::Handover::kNone;
      break;
    default:
      return base::InvalidArgument("handover: want auto, split, attend or none, got {}",
                                   static_cast<int>(proto.handover()));
  }
  if (proto.has_profile()) options.profile = proto.profile();
  if (proto.has_parallel()) options.parallel = proto.parallel();
  if (proto.has_prefetch()) options.prefetch = proto.prefetch();
  if (proto.has_speculation()) options.speculation = proto.speculation();
  RETURN_IF_ERROR(options.Check());
  return options;
}

std::string TransferIdBytes(const base::TransferId& id) {
  std::string bytes(16, '\0');
  for (int i = 0; i < 8; ++i) {
    bytes[i] = static_cast<char>(id.hi >> (56 - 8 * i));
    bytes[8 + i] = static_cast<char>(id.lo >> (56 - 8 * i));
  }
  return bytes;
}

absl::StatusOr<base::TransferId> ParseTransferId(std::string_view bytes) {
  if (bytes.size() != 16) {
    return base::InvalidArgument("transfer_id: want 16 bytes, got {}", bytes.size());
  }
  base::TransferId id;
  for (int i = 0; i < 8; ++i) {
    id.hi = id.hi << 8 | static_cast<unsigned char>(bytes[i]);
    id.lo = id.lo << 8 | static_cast<unsigned char>(bytes[8 + i]);
  }
  if (id == base::TransferId{}) return base::InvalidArgument("transfer_id: all bytes are zero");
  return id;
}

}  // namespace smartgen::rpc
