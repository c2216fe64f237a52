#include "gateway/openai/request.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>

#include "gateway/openai/fields.h"
#include "gateway/openai/json_guard.h"
#include "gateway/openai/messages.h"

namespace smartgen::gateway {
namespace {

// What is asked for with these cannot be done here; ignoring them would give a wrong answer.
constexpr std::array<std::string_view, 6> kUnsupported = {
    "functions", "function_call", "audio", "prediction", "web_search_options", "stop_token_ids"};

void RefuseUnsupported(FieldReader& reader) {
  for (const std::string_view key : kUnsupported) {
    if (reader.Has(key)) reader.Fail(key, "is not supported by this server");
  }
  for (const std::string_view key : {"continue_final_message", "use_beam_search"}) {
    if (reader.Bool(key, false)) reader.Fail(key, "is not supported by this server");
  }
  if (const Json* format = reader.Find("response_format")) {
    const bool text =
        format->is_object() && format->contains("type") && (*format)["type"] == "text";
    if (!text) {
      reader.Fail("response_format",
                  "is not supported by this server, but for {\"type\":\"text\"}");
    }
  }
  if (const Json* modalities = reader.Find("modalities")) {
    if (*modalities != Json::array({"text"})) {
      reader.Fail("modalities", "must be [\"text\"]: this server writes text only");
    }
  }
}

void ReadLogitBias(FieldReader& reader, int vocab_size, sampling::SamplingParams& params) {
  const Json* bias = reader.Find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) {
    reader.Fail("logit_bias",
                fmt::format("must be an object of token id to bias, got {}", Describe(*bias)));
    return;
  }
  for (const auto& [key, value] : bias->items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= vocab_size) {
      reader.Fail("logit_bias", fmt::format("has the key {}, which is not a token id in 0..{}",
                                            Describe(Json(key)), vocab_size - 1));
      return;
    }
    const double v = value.is_number() ? value.get<double>() : 1000;
    if (!(std::abs(v) <= 100)) {
      reader.Fail("logit_bias", fmt::format("of token {} must be a number in -100..100, got {}", id,
                                            Describe(value)));
      return;
    }
    params.logit_bias.emplace_back(id, static_cast<float>(v));
  }
  std::sort(params.logit_bias.begin(), params.logit_bias.end());
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  if (std::adjacent_find(params.logit_bias.begin(), params.logit_bias.end(), same) !=
      params.logit_bias.end()) {
    reader.Fail("logit_bias", "names a token twice");
  }
}

void ReadSampling(FieldReader& reader, const RequestLimits& limits, ParsedRequest& out) {
  sampling::SamplingParams& p = out.sampling;
  p.temperature = static_cast<float>(reader.Number("temperature", 1, {0, 2}));
  p.top_p = static_cast<float>(reader.Number("top_p", 1, {0, 1, true}));
  // -1 is how other servers write "off"; anything above the vocabulary is the whole vocabulary.
  const int64_t top_k = reader.Integer("top_k", 0, -1, INT64_MAX);
  p.top_k = static_cast<int>(std::clamp<int64_t>(top_k, 0, limits.vocab_size));
  p.min_p = static_cast<float>(reader.Number("min_p", 0, {0, 1}));
  p.presence_penalty = static_cast<float>(reader.Number("presence_penalty", 0, {-2, 2}));
  p.frequency_penalty = static_cast<float>(reader.Number("frequency_penalty", 0, {-2, 2}));
  p.repetition_penalty = static_cast<float>(reader.Number("repetition_penalty", 1, {0, 100, true}));
  p.min_tokens = static_cast<int>(reader.Integer("min_tokens", 0, 0, INT32_MAX));
  p.ignore_eos = reader.Bool("ignore_eos", false);
  ReadLogitBias(reader, limits.vocab_size, p);
  if (const Json* seed = reader.Find("seed")) {
    if (seed->is_number_unsigned()) {
      p.seed = seed->get<uint64_t>();
    } else if (const auto v = AsInteger(*seed)) {
      p.seed = static_cast<uint64_t>(*v);
    } else {
      reader.Fail("seed", fmt::format("must be an integer, got {}", Describe(*seed)));
    }
    out.has_seed = true;
  }
}

void ReadStop(FieldReader& reader, ParsedRequest& out) {
  const Json* stop = reader.Find("stop");
  if (stop == nullptr) return;
  const Json list = stop->is_string() ? Json::array({*stop}) : *stop;
  if (!list.is_array() || list.size() > kMaxStops) {
    reader.Fail(
        "stop",
        fmt::format("must be a string or an array of at most {} strings, got {}", kMaxStops,
                    list.is_array() ? fmt::format("{} elements", list.size()) : Describe(list)));
    return;
  }
  for (const Json& text : list) {
    if (!text.is_string() || text.get_ref<const std::string&>().size() > kMaxStopBytes) {
      reader.Fail("stop", fmt::format("must hold strings of at most {} bytes", kMaxStopBytes));
      return;
    }
    if (!text.get_ref<const std::string&>().empty()) out.stop.push_back(text);
  }
}

void ReadStream(FieldReader& reader, ParsedRequest& out) {
  out.stream = reader.Bool("stream", false);
  const Json* options = reader.Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) {
    reader.Fail("stream_options", fmt::format("must be an object, got {}", Describe(*options)));
    return;
  }
  if (!out.stream) {
    reader.Fail("stream_options", "is only allowed when stream is true");
    return;
  }
  FieldReader nested(*options, "stream_options.");
  out.include_usage = nested.Bool("include_usage", false);
  if (nested.error()) reader.Fail(*nested.error());
}

// One of `names`.
std::optional<std::string> ReadName(FieldReader& reader, std::string_view key,
                                    std::span<const std::string_view> names) {
  const Json* value = reader.Find(key);
  if (value == nullptr) return std::nullopt;
  const std::string name = reader.String(key, "");
  if (std::find(names.begin(), names.end(), name) != names.end()) return name;
  std::string list;
  for (const std::string_view known : names) {
    list += fmt::format("{}{}", list.empty() ? "" : ", ", known);
  }
  reader.Fail(key, fmt::format("must be one of {}, got {}", list, Describe(*value)));
  return std::nullopt;
}

std::optional<bool> ReadSwitch(FieldReader& reader, std::string_view key) {
  if (!reader.Has(key)) return std::nullopt;
  return reader.Bool(key, true);
}

void ReadSmartGen(FieldReader& reader, ParsedRequest& out) {
  constexpr std::array<std::string_view, 11> kKeys = {
      "mode",    "selector", "selection_budget", "speculative_ratio", "handover", "selection",
      "profile", "parallel", "prefetch",         "speculation",       "trace"};
  constexpr std::array<std::string_view, 7> kModes = {"auto",     "full",    "local", "exact",
                                                      "smartgen", "partial", "random"};
  constexpr std::array<std::string_view, 4> kSelectors = {"dense", "quest", "hata", "infinigen"};
  constexpr std::array<std::string_view, 4> kHandovers = {"auto", "split", "attend", "none"};
  constexpr std::array<std::string_view, 3> kSelections = {"when_needed", "never", "always"};
  const Json* object = reader.Find("smartgen");
  if (object == nullptr) return;
  if (!object->is_object()) {
    reader.Fail("smartgen", fmt::format("must be an object, got {}", Describe(*object)));
    return;
  }
  for (const auto& item : object->items()) {
    if (std::find(kKeys.begin(), kKeys.end(), item.key()) == kKeys.end()) {
      reader.Fail("smartgen", fmt::format("has the unknown key {}; known: {}",
                                          Describe(Json(item.key())), fmt::join(kKeys, ", ")));
    }
  }
  FieldReader nested(*object, "smartgen.");
  if (const auto mode = ReadName(nested, "mode", kModes)) {
    if (const auto parsed = transfer::ParseMode(*mode); parsed.ok()) out.mode = *parsed;
  }
  TransferChoice& choice = out.transfer;
  choice.selector = ReadName(nested, "selector", kSelectors);
  choice.handover = ReadName(nested, "handover", kHandovers);
  choice.selection = ReadName(nested, "selection", kSelections);
  if (nested.Has("selection_budget")) {
    choice.selection_budget =
        nested.Number("selection_budget", 1, {.min = 0, .max = 1, .min_excluded = true});
  }
  if (nested.Has("speculative_ratio")) {
    choice.speculative_ratio = nested.Number("speculative_ratio", 0, {.min = 0, .max = 1});
  }
  choice.profile = ReadSwitch(nested, "profile");
  choice.parallel = ReadSwitch(nested, "parallel");
  choice.prefetch = ReadSwitch(nested, "prefetch");
  choice.speculation = ReadSwitch(nested, "speculation");
  out.trace = nested.Bool("trace", false);
  if (nested.error()) reader.Fail(*nested.error());
}

void ReadToolChoice(FieldReader& reader, ParsedRequest& out) {
  const Json* choice = reader.Find("tool_choice");
  if (choice == nullptr || *choice == "auto") return;
  if (*choice == "none") {
    out.tools = nullptr;
    return;
  }
  reader.Fail("tool_choice", fmt::format("must be \"auto\" or \"none\": this server cannot force a "
                                         "tool call, got {}",
                                         Describe(*choice)));
}

void ReadChat(FieldReader& reader, ParsedRequest& out) {
  out.messages = ReadMessages(reader);
  out.tools = ReadTools(reader);
  ReadToolChoice(reader, out);
  out.add_generation_prompt = reader.Bool("add_generation_prompt", true);
  if (const Json* arguments = reader.Find("chat_template_kwargs")) {
    if (!arguments->is_object()) {
      reader.Fail("chat_template_kwargs",
                  fmt::format("must be an object, got {}", Describe(*arguments)));
    } else {
      out.template_arguments = *arguments;
    }
  }
  const bool logprobs = reader.Bool("logprobs", false);
  const auto top = reader.Integer("top_logprobs", 0, 0, 20);
  if (reader.Has("top_logprobs") && top > 0 && !logprobs) {
    reader.Fail("top_logprobs", "is only allowed when logprobs is true");
  }
  out.sampling.logprobs = logprobs ? static_cast<int>(top) : -1;
  // The newer name wins where a client sends both.
  for (const std::string_view key : {"max_completion_tokens", "max_tokens"}) {
    const int64_t value = reader.Integer(key, 0, 1, INT64_MAX);
    if (reader.Has(key) && !out.max_tokens) out.max_tokens = value;
  }
}

bool AllIntegers(const Json& array) {
  return std::all_of(array.begin(), array.end(), [](const Json& v) { return v.is_number(); });
}

bool ReadTokenIds(FieldReader& reader, const Json& array, int vocab_size, Prompt& prompt) {
  prompt.is_ids = true;
  prompt.ids.reserve(array.size());
  for (const Json& value : array) {
    const auto id = AsInteger(value);
    if (!id || *id < 0 || *id >= vocab_size) {
      reader.Fail("prompt", fmt::format("holds {}, which is not a token id in 0..{}",
                                        Describe(value), vocab_size - 1));
      return false;
    }
    prompt.ids.push_back(static_cast<int32_t>(*id));
  }
  return true;
}

void ReadPrompts(FieldReader& reader, const RequestLimits& limits, ParsedRequest& out) {
  const Json* prompt = reader.Find("prompt");
  constexpr std::string_view kWant =
      "must be a string, an array of strings, an array of token ids, or an array of such arrays";
  if (prompt == nullptr) return reader.Fail("prompt", "is missing");
  if (prompt->is_string()) {
    out.prompts.push_back({prompt->get<std::string>(), {}, false});
    return;
  }
  if (!prompt->is_array()) {
    return reader.Fail("prompt", fmt::format("{}, got {}", kWant, Describe(*prompt)));
  }
  if (prompt->empty()) return reader.Fail("prompt", "must not be empty");
  if (AllIntegers(*prompt)) {
    Prompt ids;
    if (ReadTokenIds(reader, *prompt, limits.vocab_size, ids))
      out.prompts.push_back(std::move(ids));
    return;
  }
  if (prompt->size() > static_cast<size_t>(limits.max_prompts)) {
    return reader.Fail("prompt", fmt::format("must hold at most {} prompts, got {}",
                                             limits.max_prompts, prompt->size()));
  }
  for (const Json& element : *prompt) {
    Prompt one;
    if (element.is_string()) {
      one.text = element.get<std::string>();
    } else if (element.is_array() && AllIntegers(element)) {
      if (!ReadTokenIds(reader, element, limits.vocab_size, one)) return;
    } else {
      return reader.Fail("prompt", kWant);
    }
    out.prompts.push_back(std::move(one));
  }
}

void ReadCompletions(FieldReader& reader, const RequestLimits& limits, ParsedRequest& out) {
  ReadPrompts(reader, limits, out);
  out.echo = reader.Bool("echo", false);
  const Json* logprobs = reader.Find("logprobs");
  if (logprobs != nullptr && *logprobs != false) {
    out.sampling.logprobs = static_cast<int>(reader.Integer("logprobs", -1, 0, 20));
  }
  if (out.echo && out.sampling.logprobs >= 0) {
    reader.Fail("echo", "cannot be combined with logprobs: prompt tokens have none here");
  }
  if (reader.Has("prompt_logprobs")) reader.Fail("prompt_logprobs", "is not supported here");
  if (reader.Has("suffix") && !reader.String("suffix", "").empty()) {
    reader.Fail("suffix", "is not supported by this server");
  }
  const int64_t best_of = reader.Integer("best_of", out.n, 1, limits.max_choices);
  if (best_of != out.n)
    reader.Fail("best_of", "must equal n: this server returns all it generates");
  const int64_t max_tokens = reader.Integer("max_tokens", 0, out.echo ? 0 : 1, INT64_MAX);
  if (reader.Has("max_tokens")) out.max_tokens = max_tokens;
}

}  // namespace

Result<ParsedRequest> ParseRequest(Api api, std::string_view body, const RequestLimits& limits) {
  auto json = ParseJsonObject(body);
  if (!json.ok()) return json.error();
  return ParseRequest(api, json.value(), limits);
}

Result<ParsedRequest> ParseRequest(Api api, const Json& json, const RequestLimits& limits) {
  ParsedRequest out;
  out.api = api;
  FieldReader reader(json);
  out.model = reader.String("model", "");
  out.n = static_cast<int>(reader.Integer("n", 1, 1, limits.max_choices));
  RefuseUnsupported(reader);
  ReadStream(reader, out);
  ReadStop(reader, out);
  ReadSampling(reader, limits, out);
  ReadSmartGen(reader, out);
  out.return_token_ids = reader.Bool("return_token_ids", false);
  if (api == Api::kChat) {
    ReadChat(reader, out);
  } else {
    ReadCompletions(reader, limits, out);
  }
  if (reader.error()) return *reader.error();
  if (out.max_tokens && out.sampling.min_tokens > *out.max_tokens) {
    return BadRequest("min_tokens",
                      fmt::format("min_tokens must be at most max_tokens ({}), got {}",
                                  *out.max_tokens, out.sampling.min_tokens));
  }
  // The sampler's own check has the last word on what it can run with.
  if (const absl::Status status = out.sampling.Check(limits.vocab_size); !status.ok()) {
    return BadRequest("", std::string(base::MessageOf(status)));
  }
  return out;
}

uint64_t SeedOfChoice(uint64_t seed, int choice) {
  if (choice == 0) return seed;
  // splitmix64's step and finaliser: neighbouring seeds must not give neighbouring choices.
  uint64_t z = seed + static_cast<uint64_t>(choice) * 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace smartgen::gateway
