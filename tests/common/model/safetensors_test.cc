#include "common/model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/common/model/safetensors_builder.h"

namespace smartgen::model {
namespace {

using ::testing::HasSubstr;
using B = SafetensorsBuilder;

// Parses a heap copy of exactly the right size, so that address sanitizer sees a read past the end.
absl::Status ParseCopy(const std::string& text) {
  std::vector<std::byte> copy(text.size());
  if (!text.empty()) std::memcpy(copy.data(), text.data(), text.size());
  FileTensors tensors;
  const absl::Status status = ParseSafetensors(copy, tensors);
  unsigned sum = 0;
  for (const auto& [name, tensor] : tensors) {
    for (const std::byte byte : tensor.data) sum += static_cast<unsigned>(byte);
  }
  EXPECT_EQ(sum, 0u);
  return status;
}

TEST(Safetensors, GivesEveryTensorItsBytes) {
  const std::string file = B{{{"a", {2, 3}}, {"b", {5}, "BF16", 2}, {"c", {}, "I64", 8}}}.Build();
  FileTensors tensors;
  const absl::Status status = ParseSafetensors(std::as_bytes(std::span(file)), tensors);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors.at("a").data.size(), 24u);
  EXPECT_EQ(tensors.at("b").data.data(), tensors.at("a").data.data() + 24);
  EXPECT_EQ(tensors.at("b").type, TensorType::kBF16);
  EXPECT_EQ(tensors.at("c").data.size(), 8u);
  EXPECT_EQ(tensors.at("c").type, std::nullopt);
}

TEST(Safetensors, AFileCutOffAtAnyByteIsRefused) {
  const std::string file = B::TinyLlama().Build();
  for (size_t length = 0; length < file.size(); ++length) {
    ASSERT_EQ(ParseCopy(file.substr(0, length)).code(), absl::StatusCode::kInvalidArgument)
        << length;
  }
  EXPECT_TRUE(ParseCopy(file).ok());
  EXPECT_FALSE(ParseCopy(file + "x").ok());
}

TEST(Safetensors, NoByteOfTheHeaderCanBeChangedToSomethingThatDoesHarm) {
  const std::string file = B{{{"a", {2, 3}}, {"b", {5}, "BF16", 2}}}.Build();
  for (size_t at = 0; at < file.size() - 34; ++at) {
    for (int value = 0; value < 256; value += 3) {
      std::string changed = file;
      changed[at] = static_cast<char>(value);
      (void)ParseCopy(changed);  // any answer but a crash
    }
  }
}

TEST(Safetensors, AHeaderLengthBeyondTheFileIsRefused) {
  std::string file = B::TinyLlama().Build();
  for (const uint64_t length : {uint64_t{1} << 62, UINT64_MAX, uint64_t{file.size() - 7}}) {
    std::memcpy(file.data(), &length, sizeof(length));
    EXPECT_THAT(std::string(base::MessageOf(ParseCopy(file))), HasSubstr("the header wants"));
  }
}

struct HeaderCase {
  std::string name;
  std::string header;
  size_t data_bytes;
  std::string message;
};

class HostileHeader : public ::testing::TestWithParam<HeaderCase> {};

TEST_P(HostileHeader, IsRefusedWithTheReason) {
  const absl::Status status = ParseCopy(B::Raw(GetParam().header, GetParam().data_bytes));
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(std::string(base::MessageOf(status)), HasSubstr(GetParam().message));
}

std::string One(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

const HeaderCase kHeaderCases[] = {
    {"NotJson", "{\"a\":", 0, "header: not valid JSON"},
    {"NotAnObject", "[1,2]", 0, "want a JSON object"},
    {"NanIsNotJson", One("F32", "[NaN]", "[0,4]"), 4, "not valid JSON"},
    {"BrokenUtf8", "{\"\xff\":1}", 0, "not valid JSON"},
    {"DeepNesting", std::string(100000, '['), 0, "nested more than 64 deep"},
    {"EntryIsANumber", R"({"a":1})", 0, "tensor a: dtype \"\" is not supported"},
    {"UnknownDtype", One("F4", "[1]", "[0,4]"), 4, "tensor a: dtype \"F4\" is not supported"},
    {"DtypeIsANumber", R"({"a":{"dtype":3,"shape":[1],"data_offsets":[0,4]}})", 4,
     "key dtype: want a string, file has 3"},
    {"NoShape", R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, "shape: want an array"},
    {"NegativeSize", One("F32", "[-1]", "[0,4]"), 4, "shape: want integers from 0, file has -1"},
    {"FractionalSize", One("F32", "[1.5]", "[0,4]"), 4, "shape: want integers from 0"},
    {"SizeBeyond64Bits", One("F32", "[99999999999999999999]", "[0,4]"), 4,
     "shape: want integers from 0"},
    {"SizeThatOverflows", One("F32", "[1099511627776,1099511627776]", "[0,4]"), 4, "overflows"},
    {"TooManyDimensions", One("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "at most 8 integers"},
    {"OneOffset", One("F32", "[1]", "[0]"), 4, "data_offsets: want 2 integers, file has 1"},
    {"OffsetsReversed", One("F32", "[1]", "[4,0]"), 4, "want them in order"},
    {"OffsetPastTheEnd", One("F32", "[1]", "[0,4]"), 3, "data_offsets [0 4]: want them in order"},
    {"HugeOffset", One("F32", "[1]", "[9223372036854775803,9223372036854775807]"), 4,
     "want them in order and at most 4"},
    {"SizeDisagrees", One("F32", "[2]", "[0,4]"), 4,
     "tensor a: [2] of F32 wants 8 bytes, data_offsets [0 4] hold 4"},
    {"Hole", One("F32", "[1]", "[4,8]"), 8, "data begins at 4, want 0"},
    {"BytesAtTheEnd", One("F32", "[1]", "[0,4]"), 8, "tensors take 4 bytes of data, file has 8"},
    {"Overlap",
     R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
     R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
     4, "data begins at 0, want 4"},
    {"DuplicateTensor",
     R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
     R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
     4, "key a appears twice"},
    {"DuplicateKeyInAnEntry",
     R"({"a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}})", 4,
     "key dtype appears twice"},
    {"EmptyName", R"({"":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4,
     "want a name of 1 to 256 bytes"},
};

INSTANTIATE_TEST_SUITE_P(Table, HostileHeader, ::testing::ValuesIn(kHeaderCases),
                         [](const auto& info) { return info.param.name; });

TEST(ShardIndex, ListsFilesAndTensors) {
  const auto index = ParseShardIndex(
      R"({"metadata":{"total_size":1},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})");
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->files.size(), 2u);
  EXPECT_EQ(index->file_of_tensor.at("b"), "m-2.safetensors");
}

TEST(ShardIndex, RefusesNamesThatLeadOutOfTheFolder) {
  for (const std::string name :
       {"../model.safetensors", "/etc/model.safetensors", "sub/model.safetensors", "..",
        ".hidden.safetensors", "a\\\\b.safetensors", "a\\u0000.safetensors", "model.bin", ""}) {
    const auto index = ParseShardIndex(R"({"weight_map":{"a":")" + name + R"("}})");
    ASSERT_FALSE(index.ok()) << name;
    EXPECT_THAT(std::string(base::MessageOf(index.status())), HasSubstr("want the plain name"))
        << name;
  }
}

TEST(ShardIndex, RefusesWhatIsNoIndex) {
  for (const std::string text :
       {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})",
        R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})"}) {
    EXPECT_FALSE(ParseShardIndex(text).ok()) << text;
  }
}

}  // namespace
}  // namespace smartgen::model
