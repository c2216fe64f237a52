#include "gateway/openai/request.h"

#include <gmock/gmock.h>

#include <set>

namespace smartgen::gateway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr RequestLimits kLimits{1000, 8, 4};

Json Chat(const std::string& extra = "{}") {
  Json json = Json::parse(R"({"messages": [{"role": "user", "content": "hi"}]})");
  json.update(Json::parse(extra));
  return json;
}
Json Completion(const std::string& extra = "{}") {
  Json json = Json::parse(R"({"prompt": "hi"})");
  json.update(Json::parse(extra));
  return json;
}
ParsedRequest Good(Api api, const Json& json) {
  auto result = ParseRequest(api, json, kLimits);
  EXPECT_TRUE(result.ok()) << json.dump() << ": " << (result.ok() ? "" : result.error().message);
  return result.ok() ? std::move(result.value()) : ParsedRequest{};
}

TEST(Request, DefaultsAreOpenAis) {
  const ParsedRequest r = Good(Api::kChat, Chat());
  EXPECT_EQ(r.sampling.temperature, 1);
  EXPECT_EQ(r.sampling.top_p, 1);
  EXPECT_EQ(r.sampling.logprobs, -1);
  EXPECT_EQ(r.n, 1);
  EXPECT_FALSE(r.max_tokens);
  EXPECT_FALSE(r.stream);
  EXPECT_FALSE(r.has_seed);
  EXPECT_EQ(r.mode, std::nullopt);
}

TEST(Request, C1_NullForEveryOptionalFieldMeansDefault) {
  const std::string nulls = R"({
    "model": null, "temperature": null, "top_p": null, "n": null, "stream": null,
    "stream_options": null, "stop": null, "max_tokens": null, "max_completion_tokens": null,
    "presence_penalty": null, "frequency_penalty": null, "logit_bias": null, "logprobs": null,
    "top_logprobs": null, "seed": null, "tools": null, "tool_choice": null,
    "response_format": null, "top_k": null, "min_p": null, "repetition_penalty": null,
    "min_tokens": null, "ignore_eos": null, "smartgen": null, "user": null, "echo": null,
    "best_of": null, "suffix": null, "functions": null, "function_call": null,
    "modalities": null, "chat_template_kwargs": null, "metadata": null, "store": null})";
  const ParsedRequest chat = Good(Api::kChat, Chat(nulls));
  const ParsedRequest completion = Good(Api::kCompletions, Completion(nulls));
  for (const ParsedRequest& r : {chat, completion}) {
    EXPECT_EQ(r.sampling.temperature, 1);
    EXPECT_EQ(r.sampling.logprobs, -1);
    EXPECT_EQ(r.n, 1);
    EXPECT_FALSE(r.has_seed);
    EXPECT_TRUE(r.stop.empty());
  }
}

TEST(Request, EverySamplingFieldArrives) {
  const ParsedRequest r = Good(Api::kChat, Chat(R"({
    "temperature": 0.5, "top_p": 0.25, "top_k": 40, "min_p": 0.125, "presence_penalty": -1,
    "frequency_penalty": 1.5, "repetition_penalty": 1.25, "seed": -3, "min_tokens": 2,
    "ignore_eos": true, "logit_bias": {"7": -100, "3": 1.5}, "logprobs": true, "top_logprobs": 5,
    "n": 3, "max_tokens": 10, "stop": ["a", "b"], "stream": true,
    "stream_options": {"include_usage": true}, "smartgen": {"mode": "local"}})"));
  EXPECT_EQ(r.sampling.temperature, 0.5f);
  EXPECT_EQ(r.sampling.top_p, 0.25f);
  EXPECT_EQ(r.sampling.top_k, 40);
  EXPECT_EQ(r.sampling.min_p, 0.125f);
  EXPECT_EQ(r.sampling.presence_penalty, -1);
  EXPECT_EQ(r.sampling.frequency_penalty, 1.5f);
  EXPECT_EQ(r.sampling.repetition_penalty, 1.25f);
  EXPECT_EQ(r.sampling.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(r.sampling.min_tokens, 2);
  EXPECT_TRUE(r.sampling.ignore_eos);
  EXPECT_THAT(r.sampling.logit_bias, ElementsAre(std::pair(3, 1.5f), std::pair(7, -100.f)));
  EXPECT_EQ(r.sampling.logprobs, 5);
  EXPECT_EQ(r.n, 3);
  EXPECT_EQ(r.max_tokens, 10);
  EXPECT_THAT(r.stop, ElementsAre("a", "b"));
  EXPECT_TRUE(r.stream);
  EXPECT_TRUE(r.include_usage);
  EXPECT_EQ(r.mode, transfer::Mode::kLocal);
}

struct BadField {
  Api api;
  const char* json;
  const char* param;
};

class RefusedField : public ::testing::TestWithParam<BadField> {};

TEST_P(RefusedField, IsNamedWithStatus400) {
  const BadField& bad = GetParam();
  const Json json = bad.api == Api::kChat ? Chat(bad.json) : Completion(bad.json);
  const auto result = ParseRequest(bad.api, json, kLimits);
  ASSERT_FALSE(result.ok()) << bad.json;
  EXPECT_EQ(result.error().status, 400);
  EXPECT_EQ(result.error().param, bad.param) << result.error().message;
  EXPECT_EQ(result.error().type, "invalid_request_error");
  EXPECT_THAT(result.error().message, HasSubstr(bad.param));
}

constexpr Api kC = Api::kChat;
constexpr Api kT = Api::kCompletions;
INSTANTIATE_TEST_SUITE_P(
    C10_OutOfRange, RefusedField,
    ::testing::Values(
        BadField{kC, R"({"temperature": 2.1})", "temperature"},
        BadField{kC, R"({"temperature": -0.1})", "temperature"},
        BadField{kC, R"({"temperature": "hot"})", "temperature"},
        BadField{kC, R"({"temperature": true})", "temperature"},
        BadField{kC, R"({"top_p": 1.1})", "top_p"}, BadField{kC, R"({"top_p": 0})", "top_p"},
        BadField{kC, R"({"n": 0})", "n"}, BadField{kC, R"({"n": 9})", "n"},
        BadField{kC, R"({"n": 1.5})", "n"}, BadField{kC, R"({"n": 0, "stream": true})", "n"},
        BadField{kC, R"({"stop": ["a","b","c","d","e"]})", "stop"},
        BadField{kC, R"({"stop": [1]})", "stop"}, BadField{kC, R"({"stop": {}})", "stop"},
        BadField{kC, R"({"logprobs": true, "top_logprobs": 21})", "top_logprobs"},
        BadField{kC, R"({"top_logprobs": 2})", "top_logprobs"},
        BadField{kC, R"({"messages": []})", "messages"},
        BadField{kC, R"({"messages": {}})", "messages"},
        BadField{kC, R"({"messages": null})", "messages"},
        BadField{kC, R"({"messages": [1]})", "messages[0]"},
        BadField{kC, R"({"messages": [{"content": "x"}]})", "messages[0].role"},
        BadField{kC, R"({"messages": [{"role": "robot", "content": "x"}]})", "messages[0].role"},
        BadField{kC, R"({"messages": [{"role": "user"}]})", "messages[0].content"},
        BadField{kC, R"({"messages": [{"role": "assistant", "content": null}]})",
                 "messages[0].content"},
        BadField{kC, R"({"messages": [{"role": "user", "content": 3}]})", "messages[0].content"},
        BadField{kC, R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
                 "messages[0].content[0].type"},
        BadField{kC, R"({"max_tokens": 0})", "max_tokens"},
        BadField{kC, R"({"max_completion_tokens": -1})", "max_completion_tokens"},
        BadField{kC, R"({"presence_penalty": 2.5})", "presence_penalty"},
        BadField{kC, R"({"frequency_penalty": -2.5})", "frequency_penalty"},
        BadField{kC, R"({"repetition_penalty": 0})", "repetition_penalty"},
        BadField{kC, R"({"min_p": 1.5})", "min_p"}, BadField{kC, R"({"top_k": -2})", "top_k"},
        BadField{kC, R"({"seed": 1.5})", "seed"}, BadField{kC, R"({"seed": "x"})", "seed"},
        BadField{kC, R"({"min_tokens": 5, "max_tokens": 4})", "min_tokens"},
        BadField{kC, R"({"stream": "yes"})", "stream"},
        BadField{kC, R"({"stream_options": {"include_usage": true}})", "stream_options"},
        BadField{kC, R"({"stream": true, "stream_options": {"include_usage": 1}})",
                 "stream_options.include_usage"},
        BadField{kC, R"({"smartgen": {"mode": "warp"}})", "smartgen.mode"},
        BadField{kC, R"({"smartgen": {"speed": 1}})", "smartgen"},
        BadField{kC, R"({"smartgen": {"selector": "best"}})", "smartgen.selector"},
        BadField{kC, R"({"smartgen": {"selection_budget": 0}})", "smartgen.selection_budget"},
        BadField{kC, R"({"smartgen": {"selection_budget": 1.1}})", "smartgen.selection_budget"},
        BadField{kC, R"({"smartgen": {"speculative_ratio": -1}})", "smartgen.speculative_ratio"},
        BadField{kC, R"({"smartgen": {"handover": "all"}})", "smartgen.handover"},
        BadField{kC, R"({"smartgen": {"selection": "maybe"}})", "smartgen.selection"},
        BadField{kC, R"({"smartgen": {"profile": 1}})", "smartgen.profile"},
        BadField{kC, R"({"smartgen": {"trace": "yes"}})", "smartgen.trace"},
        BadField{kC, R"({"model": 7})", "model"}, BadField{kT, R"({"prompt": null})", "prompt"},
        BadField{kT, R"({"prompt": []})", "prompt"}, BadField{kT, R"({"prompt": 5})", "prompt"},
        BadField{kT, R"({"prompt": [1, "a"]})", "prompt"},
        BadField{kT, R"({"prompt": [1000]})", "prompt"},
        BadField{kT, R"({"prompt": [-1]})", "prompt"},
        BadField{kT, R"({"prompt": [1.5]})", "prompt"},
        BadField{kT, R"({"prompt": [["a"]]})", "prompt"},
        BadField{kT, R"({"prompt": ["a", "b", "c", "d", "e"]})", "prompt"},
        BadField{kT, R"({"logprobs": 21})", "logprobs"},
        BadField{kT, R"({"max_tokens": 0})", "max_tokens"},
        BadField{kT, R"({"best_of": 3})", "best_of"}));

INSTANTIATE_TEST_SUITE_P(
    C3_LogitBias, RefusedField,
    ::testing::Values(BadField{kC, R"({"logit_bias": {"999999": 1}})", "logit_bias"},
                      BadField{kC, R"({"logit_bias": {"1000": 1}})", "logit_bias"},
                      BadField{kC, R"({"logit_bias": {"-1": 1}})", "logit_bias"},
                      BadField{kC, R"({"logit_bias": {"abc": 1}})", "logit_bias"},
                      BadField{kC, R"({"logit_bias": {"": 1}})", "logit_bias"},
                      BadField{kC, R"({"logit_bias": {"1": 101}})", "logit_bias"},
                      BadField{kC, R"({"logit_bias": {"1": "x"}})", "logit_bias"},
                      BadField{kC, R"({"logit_bias": {"1": 1, "01": 2}})", "logit_bias"},
                      BadField{kC, R"({"logit_bias": [1]})", "logit_bias"}));

INSTANTIATE_TEST_SUITE_P(
    Unsupported, RefusedField,
    ::testing::Values(BadField{kC, R"({"tool_choice": "required"})", "tool_choice"},
                      BadField{kC, R"({"tool_choice": {"type": "function"}})", "tool_choice"},
                      BadField{kC, R"({"response_format": {"type": "json_object"}})",
                               "response_format"},
                      BadField{kC, R"({"functions": []})", "functions"},
                      BadField{kC, R"({"modalities": ["audio"]})", "modalities"},
                      BadField{kC, R"({"continue_final_message": true})", "continue_final_message"},
                      BadField{kT, R"({"suffix": "x"})", "suffix"},
                      BadField{kT, R"({"prompt_logprobs": 1})", "prompt_logprobs"},
                      // H19: prompt log-probabilities are refused, not crashed on.
                      BadField{kT, R"({"echo": true, "logprobs": 1})", "echo"},
                      BadField{kC, R"({"tools": [{"type": "retrieval"}]})", "tools[0].type"},
                      BadField{kC, R"({"tools": [{"type": "function"}]})", "tools[0].function"}));

TEST(Request, UnknownFieldsAreIgnored) {
  Good(Api::kChat, Chat(R"({"user": "u", "metadata": {"a": 1}, "some_new_field": [1]})"));
}

TEST(Request, C6_TopKBeyondTheVocabularyIsTheVocabulary) {
  EXPECT_EQ(Good(Api::kChat, Chat(R"({"top_k": 9999999})")).sampling.top_k, 1000);
  EXPECT_EQ(Good(Api::kChat, Chat(R"({"top_k": -1})")).sampling.top_k, 0);
}

TEST(Request, C9_AToolWithoutParametersIsAccepted) {
  const ParsedRequest r = Good(
      Api::kChat,
      Chat(
          R"({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto"})"));
  EXPECT_EQ(r.tools[0]["function"]["name"], "f");
}

TEST(Request, ToolChoiceNoneHidesTheTools) {
  EXPECT_TRUE(Good(Api::kChat, Chat(R"({"tools": [{"type": "function", "function":
              {"name": "f"}}], "tool_choice": "none"})"))
                  .tools.is_null());
}

TEST(Request, AnAssistantThatCallsToolsNeedsNoContent) {
  Good(Api::kChat, Chat(R"({"messages": [{"role": "assistant", "content": null, "tool_calls":
       [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]})"));
}

TEST(Request, TheNewerNameOfMaxTokensWins) {
  EXPECT_EQ(Good(Api::kChat, Chat(R"({"max_tokens": 5, "max_completion_tokens": 7})")).max_tokens,
            7);
}

TEST(Request, StopMayBeAStringAndEmptyOnesAreDropped) {
  EXPECT_THAT(Good(Api::kChat, Chat(R"({"stop": "x"})")).stop, ElementsAre("x"));
  EXPECT_TRUE(Good(Api::kChat, Chat(R"({"stop": ["", ""]})")).stop.empty());
}

TEST(Request, PromptsComeInFourShapes) {
  EXPECT_EQ(Good(Api::kCompletions, Completion(R"({"prompt": "a"})")).prompts[0].text, "a");
  EXPECT_EQ(Good(Api::kCompletions, Completion(R"({"prompt": ["a", "b"]})")).prompts[1].text, "b");
  EXPECT_THAT(Good(Api::kCompletions, Completion(R"({"prompt": [1, 2]})")).prompts[0].ids,
              ElementsAre(1, 2));
  const auto r = Good(Api::kCompletions, Completion(R"({"prompt": [[1], [2, 3]]})"));
  ASSERT_EQ(r.prompts.size(), 2u);
  EXPECT_THAT(r.prompts[1].ids, ElementsAre(2, 3));
}

TEST(Request, ReturnTokenIdsIsABooleanOfBothApis) {
  EXPECT_FALSE(Good(Api::kChat, Chat()).return_token_ids);
  EXPECT_TRUE(Good(Api::kChat, Chat(R"({"return_token_ids": true})")).return_token_ids);
  EXPECT_TRUE(
      Good(Api::kCompletions, Completion(R"({"return_token_ids": true})")).return_token_ids);
  const auto bad = ParseRequest(Api::kChat, Chat(R"({"return_token_ids": 1})"), kLimits);
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().param, "return_token_ids");
}

TEST(Request, C5_EchoAllowsZeroTokens) {
  EXPECT_EQ(Good(Api::kCompletions, Completion(R"({"echo": true, "max_tokens": 0})")).max_tokens,
            0);
}

TEST(Request, SeedsOfChoicesDifferAndTheFirstIsTheRequests) {
  std::set<uint64_t> seeds;
  for (int i = 0; i < 8; ++i) seeds.insert(SeedOfChoice(42, i));
  EXPECT_EQ(seeds.size(), 8u);
  EXPECT_EQ(SeedOfChoice(42, 0), 42u);
}

}  // namespace
}  // namespace smartgen::gateway
