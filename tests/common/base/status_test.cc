#include "common/base/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace smartgen::base {
namespace {

absl::StatusOr<std::unique_ptr<int>> Half(int value) {
  if (value % 2 != 0) return InvalidArgument("half of {}: want an even number", value);
  return std::make_unique<int>(value / 2);
}

absl::StatusOr<int> Quarter(int value) {
  ASSIGN_OR_RETURN(const std::unique_ptr<int> half, Half(value));
  ASSIGN_OR_RETURN(const std::unique_ptr<int> quarter, Half(*half));
  return *quarter;
}

absl::Status CheckQuarter(int value) {
  RETURN_IF_ERROR(Quarter(value).status());
  return absl::OkStatus();
}

TEST(Status, MakersFormatAndCarryTheirCode) {
  const absl::Status status = NotFound("tensor {}: {} of {}", std::string_view("wq"), 3, 7);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(MessageOf(status), "tensor wq: 3 of 7");
  EXPECT_EQ(ResourceExhausted("x").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(DataLoss("x").code(), absl::StatusCode::kDataLoss);
}

TEST(Status, AnnotatePutsContextBeforeAndLeavesOkAlone) {
  const absl::Status status = Annotate(InvalidArgument("bad magic"), "reading a.gguf");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MessageOf(status), "reading a.gguf: bad magic");
  EXPECT_TRUE(Annotate(absl::OkStatus(), "reading").ok());
}

TEST(Status, MacrosPassValuesOnAndStopAtErrors) {
  EXPECT_EQ(Quarter(12).value(), 3);
  EXPECT_EQ(MessageOf(Quarter(6).status()), "half of 3: want an even number");
  EXPECT_TRUE(CheckQuarter(8).ok());
  EXPECT_FALSE(CheckQuarter(7).ok());
}

}  // namespace
}  // namespace smartgen::base
