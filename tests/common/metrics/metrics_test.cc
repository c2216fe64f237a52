#include "common/metrics/metrics.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <set>
#include <sstream>
#include <thread>

namespace smartgen::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// "name type" of every # TYPE line.
std::set<std::string> ServedTypes(const std::string& text) {
  std::set<std::string> types;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) types.insert(line.substr(7));
  }
  return types;
}

// Every metric is used once with the label values "x"; Labels are at most two.
void UseAll(Metrics& metrics) {
  for (const Definition& definition : Catalogue()) {
    ASSERT_LE(definition.labels.size(), 2u);
    const std::string_view first = definition.labels.empty() ? "" : definition.labels[0];
    const std::string_view second = definition.labels.size() < 2 ? "" : definition.labels[1];
    const auto use = [&](Labels labels) {
      if (definition.type == Type::kCounter) metrics.GetCounter(definition.name, labels).Add();
      if (definition.type == Type::kGauge) metrics.GetGauge(definition.name, labels).Set(1);
      if (definition.type == Type::kHistogram) {
        metrics.GetHistogram(definition.name, labels).Observe(1);
      }
    };
    if (definition.labels.empty()) use({});
    if (definition.labels.size() == 1) use({{first, "x"}});
    if (definition.labels.size() == 2) use({{first, "x"}, {second, "x"}});
  }
}

TEST(MetricsTest, WhatIsServedIsTheCatalogue) {
  const auto metrics = Metrics::Create("decoded");
  UseAll(*metrics);
  std::set<std::string> want;
  for (const Definition& definition : Catalogue()) {
    want.insert("smartgen_" + std::string(definition.name) + " " +
                std::string(TypeName(definition.type)));
  }
  EXPECT_EQ(ServedTypes(metrics->Serialize()), want);
}

TEST(MetricsTest, MetricsWithoutLabelsExistFromTheStartAtZero) {
  const std::string text = Metrics::Create("decoded")->Serialize();
  EXPECT_THAT(text, HasSubstr("\nsmartgen_generation_tokens_total 0\n"));
  EXPECT_THAT(text, HasSubstr("\nsmartgen_ttft_seconds_count 0\n"));
}

TEST(MetricsTest, BuildInfoNamesTheDaemon) {
  EXPECT_THAT(Metrics::Create("prefilld")->Serialize(),
              HasSubstr("smartgen_build_info{daemon=\"prefilld\",version=\""));
}

TEST(MetricsTest, NamesFollowTheConventions) {
  for (const Definition& definition : Catalogue()) {
    const std::string_view name = definition.name;
    EXPECT_THAT(std::string(name), Not(StartsWith("smartgen_")));
    EXPECT_EQ(name.ends_with("_total"), definition.type == Type::kCounter) << name;
    EXPECT_EQ(definition.buckets == Buckets::kNone, definition.type != Type::kHistogram) << name;
    EXPECT_FALSE(definition.help.empty()) << name;
  }
}

TEST(MetricsTest, ALabelSetIsOneMetricWhateverTheOrder) {
  const auto metrics = Metrics::Create("decoded");
  Counter& a =
      metrics->GetCounter("transfer_bytes_total", {{"path", "full"}, {"direction", "sent"}});
  Counter& b =
      metrics->GetCounter("transfer_bytes_total", {{"direction", "sent"}, {"path", "full"}});
  EXPECT_EQ(&a, &b);
  a.Add(5);
  EXPECT_EQ(b.value(), 5);
}

TEST(MetricsTest, ObservationsFallIntoVllmsBuckets) {
  const auto metrics = Metrics::Create("gateway");
  metrics->GetHistogram("ttft_seconds").Observe(0.03);
  const std::string text = metrics->Serialize();
  EXPECT_THAT(text, HasSubstr("smartgen_ttft_seconds_bucket{le=\"0.02\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("smartgen_ttft_seconds_bucket{le=\"0.04\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("smartgen_ttft_seconds_bucket{le=\"2560\"} 1\n"));
}

TEST(MetricsTest, BucketBoundsAscend) {
  for (const Buckets set : {Buckets::kTtft, Buckets::kItl, Buckets::kSeconds, Buckets::kCount}) {
    const auto bounds = BucketBounds(set);
    ASSERT_FALSE(bounds.empty());
    for (size_t i = 1; i < bounds.size(); ++i) EXPECT_LT(bounds[i - 1], bounds[i]);
  }
}

TEST(MetricsTest, CollectCallbacksRunBeforeEachSerialisation) {
  const auto metrics = Metrics::Create("decoded");
  int calls = 0;
  metrics->OnCollect([&] { metrics->GetGauge("kv_leases").Set(++calls); });
  EXPECT_THAT(metrics->Serialize(), HasSubstr("smartgen_kv_leases 1\n"));
  EXPECT_THAT(metrics->Serialize(), HasSubstr("smartgen_kv_leases 2\n"));
}

TEST(MetricsTest, ManyThreadsCountExactly) {
  const auto metrics = Metrics::Create("decoded");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        metrics->GetCounter("requests_total", {{"code", i % 2 ? "200" : "400"}}).Add();
      }
    });
  }
  metrics->Serialize();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(metrics->GetCounter("requests_total", {{"code", "200"}}).value(), 2000);
}

TEST(MetricsDeathTest, WhatIsNotInTheCatalogueAborts) {
  const auto metrics = Metrics::Create("decoded");
  EXPECT_DEATH(metrics->GetCounter("nonsense_total"), "nonsense_total is not in the catalogue");
  EXPECT_DEATH(metrics->GetGauge("requests_total", {{"code", "200"}}), "is a counter, not a gauge");
  EXPECT_DEATH(metrics->GetCounter("requests_total", {{"cod", "200"}}),
               "requests_total has the labels \\[code\\], got \\[cod\\]");
}

TEST(MetricsTest, TheMarkdownTableHasALineForEach) {
  const std::string table = CatalogueMarkdown();
  for (const Definition& definition : Catalogue()) {
    EXPECT_THAT(table, HasSubstr("| `smartgen_" + std::string(definition.name) + "` |"));
  }
}

std::string HttpGet(int port, const std::string& request) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string reply;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      send(fd, request.data(), request.size(), 0) == static_cast<ssize_t>(request.size())) {
    char buffer[4096];
    for (ssize_t n; (n = recv(fd, buffer, sizeof(buffer), 0)) > 0;) {
      reply.append(buffer, static_cast<size_t>(n));
    }
  }
  close(fd);
  return reply;
}

TEST(MetricsServerTest, ServesTheTextFormatOnTheBoundPort) {
  const auto metrics = Metrics::Create("decoded");
  const auto server = MetricsServer::Start("127.0.0.1:0", metrics.get());
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_GT((*server)->port(), 0);
  const std::string reply = HttpGet((*server)->port(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(reply, HasSubstr("text/plain; version=0.0.4"));
  EXPECT_TRUE(reply.ends_with(metrics->Serialize()));
}

TEST(MetricsServerTest, OtherPathsAndMethodsAreRefused) {
  const auto metrics = Metrics::Create("decoded");
  const auto server = MetricsServer::Start("127.0.0.1:0", metrics.get());
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = (*server)->port();
  EXPECT_THAT(HttpGet(port, "GET /etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n"),
              StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(HttpGet(port, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"),
              StartsWith("HTTP/1.1 405"));
}

TEST(MetricsServerTest, ASilentClientDoesNotHoldUpTheEnd) {
  const auto metrics = Metrics::Create("decoded");
  auto server = MetricsServer::Start("127.0.0.1:0", metrics.get());
  ASSERT_TRUE(server.ok()) << server.status();
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>((*server)->port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const auto begin = std::chrono::steady_clock::now();
  server->reset();
  // The connection's own limit is five seconds.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  close(fd);
}

TEST(MetricsServerTest, ATakenPortIsReported) {
  const auto metrics = Metrics::Create("decoded");
  const auto first = MetricsServer::Start("127.0.0.1:0", metrics.get());
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string address = "127.0.0.1:" + std::to_string((*first)->port());
  const auto second = MetricsServer::Start(address, metrics.get());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(base::MessageOf(second.status())), HasSubstr(address));
}

}  // namespace
}  // namespace smartgen::metrics
