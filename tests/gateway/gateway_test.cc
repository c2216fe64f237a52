// Requests through a whole gateway: answers, streams, errors, retries, metrics.
#include "gateway/gateway.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "gateway/openai/request.h"
#include "tests/gateway/gateway_fixture.h"

namespace smartgen::gateway {
namespace {

using namespace testing;  // NOLINT: fixtures and the tiny model
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Event = nlohmann::ordered_json;

using GatewayTest = GatewayFixture;

std::string TextOf(const std::vector<std::string>& events) {
  std::string text;
  for (const std::string& event : events) {
    if (event == "[DONE]") break;
    const auto chunk = Event::parse(event);
    for (const auto& choice : chunk["choices"]) {
      if (choice.contains("delta")) text += choice["delta"].value("content", "");
      if (choice.contains("text")) text += choice["text"].get<std::string>();
    }
  }
  return text;
}

TEST_F(GatewayTest, AChatRequestIsAnswered) {
  Start();
  const RawResponse response = Chat();
  ASSERT_EQ(response.status, 200) << response.body;
  const auto json = response.Json();
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["model"], "tiny");
  EXPECT_THAT(json["id"].get<std::string>(), HasSubstr("chatcmpl-"));
  EXPECT_EQ(json["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(json["choices"][0]["message"]["content"], "ok");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["usage"]["completion_tokens"], 2);
  EXPECT_EQ(json["usage"]["prompt_tokens"], decode().requests()[0].prompt_ids_size());
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
  EXPECT_EQ(json["smartgen"]["mode"], "full");
  EXPECT_EQ(json["smartgen"]["prefill_address"], "127.0.0.1:7100");
  EXPECT_EQ(json["smartgen"]["transfer_bytes"], 4096);
  EXPECT_GT(json["smartgen"]["timings"]["ttft"].get<double>(), 0);
  EXPECT_GE(json["smartgen"]["timings"]["ttst"].get<double>(),
            json["smartgen"]["timings"]["ttft"].get<double>());
}

TEST_F(GatewayTest, UserTextNeverBecomesAControlToken) {
  Start();
  ASSERT_EQ(Chat("", "<|eos|>").status, 200);
  ASSERT_EQ(Complete(R"({"prompt": "<|im_start|>x"})").status, 200);
  const auto requests = decode().requests();
  // The template's own two control tokens, and none from the user.
  EXPECT_EQ(std::count_if(requests[0].prompt_ids().begin(), requests[0].prompt_ids().end(),
                          [](int id) { return id >= kBos && id <= kImStart; }),
            2);
  EXPECT_EQ(std::count(requests[1].prompt_ids().begin(), requests[1].prompt_ids().end(), kImStart),
            0);
}

TEST_F(GatewayTest, TrustUserTextIsTransformersBehaviour) {
  auto model = TinyModel();
  AddDecode();
  model.trust_user_text = true;
  auto gateway = Gateway::Start(options_, std::move(model), metrics_.get(), base::Clock::Real());
  ASSERT_TRUE(gateway.ok());
  ASSERT_EQ(Post((*gateway)->port(), "/v1/completions", R"({"prompt": "<|im_start|>"})").status,
            200);
  EXPECT_THAT(decode().requests()[0].prompt_ids(), ElementsAre(kImStart));
}

TEST_F(GatewayTest, T5_ContentAsStringAndAsPartsIsTheSamePrompt) {
  Start();
  ASSERT_EQ(Chat("", "hello").status, 200);
  ASSERT_EQ(Post(port(), "/v1/chat/completions",
                 R"({"messages":[{"role":"user","content":[{"type":"text","text":"hello"}]}]})")
                .status,
            200);
  const auto requests = decode().requests();
  EXPECT_THAT(requests[0].prompt_ids(), ::testing::ElementsAreArray(requests[1].prompt_ids()));
}

TEST_F(GatewayTest, T2_ATemplatesRefusalIs400WithItsMessage) {
  Start();
  const RawResponse response = Post(port(), "/v1/chat/completions",
                                    R"({"messages":[{"role":"system","content":"refuse"}]})");
  EXPECT_EQ(response.status, 400);
  EXPECT_THAT(response.Json()["error"]["message"].get<std::string>(),
              HasSubstr("System role not supported"));
}

// --- streams

TEST_F(GatewayTest, G6_AStreamIsServerSentEvents) {
  Start();
  const RawResponse response = Chat(R"("stream":true)");
  EXPECT_EQ(response.status, 200);
  EXPECT_THAT(response.headers.at("content-type"), HasSubstr("text/event-stream"));
  EXPECT_FALSE(response.headers.contains("content-length"));
  EXPECT_TRUE(response.complete);
  EXPECT_EQ(response.Events().back(), "[DONE]");
}

TEST_F(GatewayTest, S7_S8_ChunksHaveTheRightOrderAndKeys) {
  Start();
  const auto events = Chat(R"("stream":true)").Events();
  ASSERT_GE(events.size(), 4u);
  const auto first = Event::parse(events[0]);
  EXPECT_EQ(first["object"], "chat.completion.chunk");
  EXPECT_EQ(first["choices"][0]["delta"], Event::parse(R"({"role":"assistant","content":""})"));
  int roles = 0;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const auto chunk = Event::parse(events[i]);
    EXPECT_FALSE(chunk.contains("usage"));
    ASSERT_TRUE(chunk["choices"][0].contains("finish_reason"));
    roles += chunk["choices"][0]["delta"].contains("role") ? 1 : 0;
    const bool last = i + 2 == events.size();
    EXPECT_EQ(chunk["choices"][0]["finish_reason"], last ? Event("stop") : Event(nullptr));
    if (last) {
      EXPECT_EQ(chunk["choices"][0]["delta"], Event::object());
    }
  }
  EXPECT_EQ(roles, 1);
  EXPECT_EQ(TextOf(events), "ok");
}

TEST_F(GatewayTest, S6_UsageComesOnlyWhenAskedForAndBeforeDone) {
  Start();
  const auto asked = Chat(R"("stream":true,"stream_options":{"include_usage":true})").Events();
  const auto usage = Event::parse(asked[asked.size() - 2]);
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 2);
  EXPECT_EQ(usage["smartgen"]["mode"], "full");
  for (size_t i = 0; i + 2 < asked.size(); ++i) {
    const auto chunk = Event::parse(asked[i]);
    ASSERT_TRUE(chunk.contains("usage"));
    EXPECT_TRUE(chunk["usage"].is_null());
  }
  for (const char* options :
       {R"("stream":true,"stream_options":{"include_usage":false})",
        R"("stream":true,"stream_options":null)", R"("stream":true,"stream_options":{})"}) {
    for (const std::string& event : Chat(options).Events()) {
      EXPECT_THAT(event, ::testing::Not(HasSubstr("usage")));
    }
  }
}

TEST_F(GatewayTest, S1_S11_StopStringsActAlikeStreamedAndNot) {
  AddDecode().SetScript([](const v1::GenerateRequest&, FakeStream& stream) {
    stream.Admit();
    stream.Tokens({'a', 'b', kLessSlash, kEn, kDGreater, 'c'});
    return stream.AwaitCancel() ? grpc::Status::CANCELLED : grpc::Status::OK;
  });
  options_.probe_interval = std::chrono::hours(1);
  Start();
  const auto whole = Chat(R"("stop":"</end>")").Json();
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "ab");
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
  const auto events = Chat(R"("stop":"</end>","stream":true)").Events();
  EXPECT_EQ(TextOf(events), "ab");
  EXPECT_EQ(Event::parse(events[events.size() - 2])["choices"][0]["finish_reason"], "stop");
  // The generation is cancelled, not left to run.
  EXPECT_TRUE(Eventually([&] { return decode().cancelled() == 2; }));
}

TEST_F(GatewayTest, S3_EveryChunkOfSplitCharactersIsValidUtf8) {
  const std::string text = "\xf0\x9f\x98\x80\xe4\xb8\xad\xe6\x96\x87";
  AddDecode().SetScript(Says(text));
  Start();
  const auto events = Chat(R"("stream":true)").Events();
  EXPECT_EQ(TextOf(events), text);
  for (const auto& event : events) EXPECT_THAT(event, ::testing::Not(HasSubstr("\xef\xbf\xbd")));
}

TEST_F(GatewayTest, SeveralChoicesAndPromptsAreChoicesInOrder) {
  Start();
  const auto json = Complete(R"({"prompt": ["a", "bc"], "n": 2, "seed": 5})").Json();
  ASSERT_EQ(json["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(json["choices"][static_cast<size_t>(i)]["index"], i);
  EXPECT_EQ(json["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(json["usage"]["completion_tokens"], 8);
  std::set<uint64_t> seeds;
  for (const auto& request : decode().requests()) seeds.insert(request.sampling().seed());
  EXPECT_EQ(seeds, (std::set<uint64_t>{SeedOfChoice(5, 0), SeedOfChoice(5, 1)}));
}

TEST_F(GatewayTest, EachStreamedChoiceHasOneRoleChunkAndOneEnd) {
  Start();
  const auto events = Chat(R"("stream":true,"n":3)").Events();
  std::map<int, int> roles;
  std::map<int, int> ends;
  for (const auto& event : events) {
    if (event == "[DONE]") continue;
    const auto choice = Event::parse(event)["choices"][0];
    if (choice["delta"].contains("role")) ++roles[choice["index"].get<int>()];
    if (!choice["finish_reason"].is_null()) ++ends[choice["index"].get<int>()];
  }
  EXPECT_EQ(roles, (std::map<int, int>{{0, 1}, {1, 1}, {2, 1}}));
  EXPECT_EQ(ends, roles);
}

TEST_F(GatewayTest, C5_EchoWithZeroTokensIsThePrompt) {
  Start();
  const auto json = Complete(R"({"prompt": "abc", "echo": true, "max_tokens": 0})").Json();
  EXPECT_EQ(json["choices"][0]["text"], "abc");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(decode().requests().empty());
}

TEST_F(GatewayTest, EchoPutsThePromptBeforeTheAnswer) {
  Start();
  EXPECT_EQ(Complete(R"({"prompt": [97, 98], "echo": true})").Json()["choices"][0]["text"], "abok");
  EXPECT_EQ(TextOf(Complete(R"({"prompt": "ab", "echo": true, "stream": true})").Events()), "abok");
}

TEST_F(GatewayTest, H19_TheFirstTokenHasLogprobs) {
  Start();
  const auto chat = Chat(R"("logprobs":true,"top_logprobs":1)").Json();
  const auto content = chat["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["token"], "o");
  EXPECT_EQ(content[0]["logprob"], -0.5);
  EXPECT_EQ(content[0]["bytes"], Event::parse("[111]"));
  EXPECT_EQ(content[0]["top_logprobs"][0]["token"], "o");
  const auto text = Complete(R"({"prompt": "x", "logprobs": 1})").Json()["choices"][0]["logprobs"];
  EXPECT_EQ(text["tokens"], Event::parse(R"(["o","k"])"));
  EXPECT_EQ(text["token_logprobs"].size(), 2u);
  EXPECT_EQ(text["top_logprobs"][1]["k"], -0.5);
  EXPECT_EQ(text["text_offset"], Event::parse("[0,1]"));
}

TEST_F(GatewayTest, TokenIdsComeWhereTheyAreAskedFor) {
  Start();
  const auto ids = Event::parse("[111,107]");
  EXPECT_EQ(Chat(R"("return_token_ids":true)").Json()["choices"][0]["token_ids"], ids);
  EXPECT_EQ(
      Complete(R"({"prompt": "x", "return_token_ids": true})").Json()["choices"][0]["token_ids"],
      ids);
  EXPECT_FALSE(Chat().Json()["choices"][0].contains("token_ids"));
  const auto events = Chat(R"("stream":true,"return_token_ids":true)").Events();
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const auto choice = Event::parse(events[i])["choices"][0];
    // The last chunk of a choice has them all.
    EXPECT_EQ(choice.value("token_ids", Event()), i + 2 == events.size() ? ids : Event());
  }
}

TEST_F(GatewayTest, C8_WithoutMaxTokensTheContextIsTheBound) {
  AddDecode().SetScript(Says("abc", v1::Finished::REASON_LENGTH));
  Start();
  const auto json = Complete(R"({"prompt": [1, 2, 3]})").Json();
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(decode().requests()[0].max_tokens(), 512 - 3);
}

TEST_F(GatewayTest, APromptLongerThanTheContextIs400WithBothNumbers) {
  Start();
  const auto response = Complete(R"({"prompt": ")" + std::string(600, 'a') + "\"}");
  EXPECT_EQ(response.status, 400);
  const auto error = response.Json()["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("512"));
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("600"));
}

TEST_F(GatewayTest, TheModeTravels) {
  Start();
  Chat(R"("smartgen":{"mode":"local"})");
  EXPECT_EQ(decode().requests()[0].mode(), v1::MODE_LOCAL);
}

TEST_F(GatewayTest, WhoAsksForATraceHasItUnderTheResponsesId) {
  Start();
  const auto response = Chat(R"("smartgen":{"trace":true})");
  EXPECT_TRUE(decode().requests()[0].trace());
  EXPECT_EQ(decode().requests()[0].request_id(), response.Json()["id"]);
  Chat(R"("smartgen":{"mode":"local"})");
  EXPECT_FALSE(decode().requests()[1].trace());
}

TEST_F(GatewayTest, AnotherModelsNameIs404) {
  Start();
  const auto response = Chat(R"("model":"gpt-4")");
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(response.Json()["error"]["code"], "model_not_found");
  EXPECT_EQ(response.Json()["error"]["param"], "model");
}

// --- failures of the backend

TEST_F(GatewayTest, H6_NoRoomIs429WithRetryAfter) {
  AddDecode().SetScript([](const auto&, FakeStream&) {
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "no KV pages");
  });
  Start();
  for (const char* extra : {"", R"("stream":true)"}) {
    const auto response = Chat(extra);
    EXPECT_EQ(response.status, 429);
    EXPECT_TRUE(response.headers.contains("retry-after"));
    EXPECT_THAT(response.Json()["error"]["message"].get<std::string>(), HasSubstr("no KV pages"));
  }
  EXPECT_EQ(decode().requests().size(), 2u);
}

TEST_F(GatewayTest, G5_ARefusedArgumentStays400) {
  AddDecode().SetScript([](const auto&, FakeStream&) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "max_tokens: too many");
  });
  Start();
  EXPECT_EQ(Chat().status, 400);
  EXPECT_EQ(decode().requests().size(), 1u);
}

TEST_F(GatewayTest, G4_AnUnavailableInstanceIsRetriedElsewhereAndCounted) {
  for (int i = 0; i < 2; ++i) {
    AddDecode().SetScript([](const auto&, FakeStream&) {
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "no way to make a token");
    });
  }
  AddDecode();
  Start();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Chat().Json()["choices"][0]["message"]["content"], "ok");
  EXPECT_GE(Fallbacks("decode_retried"), 1);
}

TEST_F(GatewayTest, ARefusalBeforeTheFirstTokenIsTriedElsewhere) {
  for (const auto code : {grpc::StatusCode::RESOURCE_EXHAUSTED, grpc::StatusCode::OUT_OF_RANGE,
                          grpc::StatusCode::FAILED_PRECONDITION}) {
    daemons_.clear();
    options_.decode.clear();
    gateway_.reset();
    const auto refuses = [code](const auto&, FakeStream&) {
      return grpc::Status(code, "not here");
    };
    AddDecode().SetScript(refuses);
    AddDecode();
    decode(1).SetInfo([](v1::DaemonInfo& info) { info.set_running(50); });
    options_.probe_interval = std::chrono::hours(1);
    Start();
    EXPECT_EQ(Chat().Json()["choices"][0]["message"]["content"], "ok");
    EXPECT_EQ(decode(0).requests().size(), 1u);
    decode(1).SetScript(refuses);
    const auto response = Chat();
    EXPECT_NE(response.status, 503);
    EXPECT_THAT(response.body, HasSubstr("not here"));
    EXPECT_EQ(decode(0).requests().size(), 2u);
    EXPECT_EQ(decode(1).requests().size(), 2u);
  }
}

TEST_F(GatewayTest, G4_AnInternalErrorIsNotRetried) {
  AddDecode().SetScript(
      [](const auto&, FakeStream&) { return grpc::Status(grpc::StatusCode::INTERNAL, "broken"); });
  AddDecode().SetScript(
      [](const auto&, FakeStream&) { return grpc::Status(grpc::StatusCode::INTERNAL, "broken"); });
  Start();
  EXPECT_EQ(Chat().status, 500);
  EXPECT_EQ(decode(0).requests().size() + decode(1).requests().size(), 1u);
}

TEST_F(GatewayTest, G1_NothingUpIs503AtOnce) {
  AddDecode();
  Start();
  decode().Kill();
  ASSERT_TRUE(Eventually([&] { return !gateway_->ready(); }));
  const auto begin = base::Clock::Real()->Now();
  const auto response = Chat();
  EXPECT_EQ(response.status, 503);
  EXPECT_TRUE(response.headers.contains("retry-after"));
  EXPECT_LT(base::ToSeconds(base::Clock::Real()->Now() - begin), 5.0);
}

TEST_F(GatewayTest, ABrokenStreamGoesOnElsewhereWithWhatWasSent) {
  const auto half = [](const v1::GenerateRequest& request, FakeStream& stream) {
    if (request.request_id() == "readiness") return Says("x")(request, stream);
    stream.Admit();
    const auto from = request.generated_ids_size();
    if (from == 0) {
      stream.Tokens({'a', 'b'});
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "dying");
    }
    return Says("abcd")(request, stream);
  };
  AddDecode().SetScript(half);
  AddDecode().SetScript(half);
  Start();
  const auto events =
      Chat(R"("stream":true,"seed":9,"stream_options":{"include_usage":true})").Events();
  EXPECT_EQ(TextOf(events), "abcd");
  EXPECT_EQ(Event::parse(events[events.size() - 2])["smartgen"]["resumptions"], 1);
  EXPECT_EQ(Fallbacks("decode_resumed"), 1);
  std::vector<v1::GenerateRequest> all = decode(0).requests();
  for (const auto& request : decode(1).requests()) all.push_back(request);
  ASSERT_EQ(all.size(), 2u);
  for (const auto& request : all) {
    EXPECT_EQ(request.sampling().seed(), 9u);
    EXPECT_EQ(request.max_tokens(), all[0].max_tokens());
  }
}

TEST_F(GatewayTest, AStreamThatEndsWithoutSayingSoGoesOnElsewhere) {
  const auto cut = [](const v1::GenerateRequest& request, FakeStream& stream) {
    if (request.generated_ids_size() > 0) return Says("xyz")(request, stream);
    stream.Admit();
    stream.Tokens({'x'});
    return grpc::Status::OK;
  };
  AddDecode().SetScript(cut);
  AddDecode().SetScript(cut);
  options_.probe_interval = std::chrono::hours(1);
  Start();
  EXPECT_EQ(Chat().Json()["choices"][0]["message"]["content"], "xyz");
}

TEST_F(GatewayTest, S9_AnErrorAfterTheFirstByteIsAnEventAndTheEnd) {
  std::atomic<bool> seen{false};
  AddDecode().SetScript([&seen](const auto&, FakeStream& stream) {
    stream.Admit();
    stream.Tokens({'a'});
    Eventually([&] { return seen.load(); });
    return grpc::Status(grpc::StatusCode::INTERNAL, "NaN logits");
  });
  Start();
  RawClient client(port());
  client.Send(PostText("/v1/chat/completions", ChatBody(R"("stream":true)")));
  ASSERT_TRUE(client.ReadUntil("\"a\""));
  seen = true;
  const auto response = client.Read();
  EXPECT_EQ(response.status, 200);
  const auto events = response.Events();
  EXPECT_THAT(Event::parse(events.back())["error"]["message"].get<std::string>(),
              HasSubstr("NaN logits"));
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(GatewayTest, S9_InvalidStreamRequestsAre400BeforeHeaders) {
  Start();
  const auto response = Chat(R"("stream":true,"n":0)");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.Json()["error"]["param"], "n");
}

TEST_F(GatewayTest, G2_BadRequestsDoNotHurtTheBackend) {
  Start();
  for (int i = 0; i < 100; ++i) ASSERT_EQ(Chat(R"("n":0)").status, 400);
  EXPECT_EQ(Chat().status, 200);
}

TEST_F(GatewayTest, G10_ADrainingInstanceGetsNoNewWork) {
  AddDecode();
  AddDecode();
  decode(0).SetInfo([](v1::DaemonInfo& info) { info.set_draining(true); });
  Start();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Chat().status, 200);
  EXPECT_TRUE(decode(0).requests().empty());
}

TEST_F(GatewayTest, AnInstanceWithAnotherModelGetsNoWork) {
  AddDecode().SetInfo([](v1::DaemonInfo& info) { info.set_model_fingerprint("other"); });
  Start();
  EXPECT_EQ(Chat().status, 503);
  const auto ready = Get(port(), "/health/ready");
  EXPECT_EQ(ready.status, 503);
  EXPECT_THAT(ready.body, HasSubstr("another model"));
}

TEST_F(GatewayTest, TheLeastLoadedInstanceIsChosen) {
  AddDecode().SetInfo([](v1::DaemonInfo& info) { info.set_running(50); });
  AddDecode();
  Start();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Chat().status, 200);
  EXPECT_TRUE(decode(0).requests().empty());
}

TEST_F(GatewayTest, MoreChoicesThanCanEverRunAre400) {
  options_.max_running = 2;
  Start();
  const auto response = Chat(R"("n":3)");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.Json()["error"]["param"], "n");
}

TEST_F(GatewayTest, MoreThanMaxRunningIs429) {
  options_.max_running = 2;
  options_.probe_interval = std::chrono::hours(1);
  AddDecode();
  Start();
  ASSERT_TRUE(Eventually([&] { return gateway_->ready(); }));
  decode().SetScript([](const auto&, FakeStream& stream) {
    stream.AwaitCancel();
    return grpc::Status::CANCELLED;
  });
  RawClient first(port());
  RawClient second(port());
  first.Send(PostText("/v1/chat/completions", ChatBody()));
  second.Send(PostText("/v1/chat/completions", ChatBody()));
  ASSERT_TRUE(Eventually([&] { return decode().running() == 2; }));
  const auto response = Chat();
  EXPECT_EQ(response.status, 429);
  EXPECT_TRUE(response.headers.contains("retry-after"));
  first.Close();
  ASSERT_TRUE(Eventually([&] { return decode().running() == 1; }));
}

TEST_F(GatewayTest, AnInstanceThatHangsIsSeenWithinSeconds) {
  AddDecode();
  Start();
  ASSERT_TRUE(Eventually([&] { return gateway_->ready(); }));
  std::atomic<bool> go_on{false};
  // Holds the lock that answers to Info need.
  std::thread hang([&] {
    decode().SetInfo([&](v1::DaemonInfo&) { Eventually([&] { return go_on.load(); }); });
  });
  const auto begin = base::Clock::Real()->Now();
  EXPECT_TRUE(Eventually([&] {
    return metrics_->GetGauge("peer_up", {{"peer", options_.decode[0]}}).value() == 0;
  }));
  EXPECT_LT(base::ToSeconds(base::Clock::Real()->Now() - begin), 20.0);
  go_on = true;
  hang.join();
}

TEST_F(GatewayTest, KeepAliveCommentsComeWhileThereIsNoToken) {
  options_.keepalive_interval = std::chrono::milliseconds(30);
  AddDecode();
  Start();
  decode().SetScript([](const auto&, FakeStream& stream) {
    stream.Admit();
    stream.AwaitCancel();
    return grpc::Status::CANCELLED;
  });
  RawClient client(port());
  client.Send(PostText("/v1/chat/completions", ChatBody(R"("stream":true)")));
  EXPECT_TRUE(client.ReadUntil("text/event-stream"));
  EXPECT_TRUE(client.ReadUntil(": keep-alive\n\n"));
}

TEST_F(GatewayTest, ALongStreamArrivesWholeAndInOrder) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>('a' + i % 26);
  AddDecode().SetScript(Says(text));
  Start();
  EXPECT_EQ(TextOf(Chat(R"("stream":true)").Events()), text);
}

// --- metrics and readiness

TEST_F(GatewayTest, M1_M4_MetricsCountWhatTheClientSaw) {
  Start();
  Chat(R"("stream":true)");
  Chat(R"("n":0)");
  const std::string text = Get(port(), "/metrics").body;
  EXPECT_THAT(text, HasSubstr("smartgen_ttft_seconds_count 1"));
  EXPECT_THAT(text, HasSubstr("smartgen_ttst_seconds_count{def=\"gap\"} 1"));
  EXPECT_THAT(text, HasSubstr("smartgen_ttst_seconds_count{def=\"e2e\"} 1"));
  EXPECT_THAT(text, HasSubstr("smartgen_e2e_seconds_count 1"));
  EXPECT_THAT(text, HasSubstr("smartgen_requests_total{code=\"200\"} 1"));
  EXPECT_THAT(text, HasSubstr("smartgen_requests_total{code=\"400\"} 1"));
  EXPECT_THAT(text, HasSubstr("smartgen_generation_tokens_total 2"));
  EXPECT_THAT(text, HasSubstr("smartgen_requests_running 0"));
  EXPECT_THAT(text, HasSubstr("smartgen_requests_waiting 0"));
  EXPECT_THAT(text, HasSubstr("smartgen_stage_seconds_sum{stage=\"prefill\"} 0.5"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("chatcmpl")));
}

TEST_F(GatewayTest, G9_ReadyMeansThatATokenWasMade) {
  AddDecode().SetScript([](const auto&, FakeStream&) {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "still loading");
  });
  options_.probe_retry = std::chrono::milliseconds(20);
  Start();
  ASSERT_TRUE(Eventually([&] { return decode().probes() >= 2; }));
  auto response = Get(port(), "/health/ready");
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.Json()["status"], "not ready");
  EXPECT_EQ(Get(port(), "/health/live").status, 200);
  decode().SetScript(Says("y"));
  ASSERT_TRUE(Eventually([&] { return gateway_->ready(); }));
  response = Get(port(), "/health/ready");
  EXPECT_EQ(response.status, 200);
  EXPECT_THAT(response.Json()["path"].get<std::string>(), HasSubstr("prefill 127.0.0.1:7100"));
}

TEST_F(GatewayTest, ReadyNamesWhatIsDegraded) {
  AddDecode().SetInfo([](v1::DaemonInfo& info) {
    auto* peer = info.add_peers();
    peer->set_address("10.0.0.9:7100");
    peer->set_detail("connection refused");
  });
  options_.decode.push_back("127.0.0.1:1");
  Start();
  ASSERT_TRUE(Eventually([&] { return gateway_->ready(); }));
  const auto report = Get(port(), "/health/ready").Json();
  EXPECT_EQ(report["status"], "ready");
  EXPECT_THAT(report["degraded"].dump(), HasSubstr("10.0.0.9:7100: connection refused"));
  EXPECT_THAT(report["degraded"].dump(), HasSubstr("127.0.0.1:1"));
}

TEST_F(GatewayTest, TheModelIsListed) {
  Start();
  const auto list = Get(port(), "/v1/models").Json();
  EXPECT_EQ(list["data"][0]["id"], "tiny");
  EXPECT_EQ(Get(port(), "/v1/models/tiny").Json()["object"], "model");
  EXPECT_EQ(Get(port(), "/v1/models/other").status, 404);
}

}  // namespace
}  // namespace smartgen::gateway
