// Internal to common/model: JSON from model folders, parsed without exceptions and without trust.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace smartgen::model {

// InvalidArgument where brackets nest more than 64 deep.
absl::Status CheckJsonDepth(std::string_view text);

// An object, at most 64 levels deep, in which no key appears twice in the same object.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text);

// Member access that never throws; nullptr also for a member that is null.
const nlohmann::json* Member(const nlohmann::json& object, std::string_view key);

// Typed members. Messages name the key, what it wants and what it has.
absl::StatusOr<int64_t> IntegerMember(const nlohmann::json& object, std::string_view key,
                                      int64_t low, int64_t high);
absl::StatusOr<int64_t> IntegerMemberOr(const nlohmann::json& object, std::string_view key,
                                        int64_t otherwise, int64_t low, int64_t high);
absl::StatusOr<float> RealMember(const nlohmann::json& object, std::string_view key);
absl::StatusOr<float> RealMemberOr(const nlohmann::json& object, std::string_view key,
                                   float otherwise);
absl::StatusOr<bool> BoolMemberOr(const nlohmann::json& object, std::string_view key,
                                  bool otherwise);
absl::StatusOr<std::string> TextMemberOr(const nlohmann::json& object, std::string_view key,
                                         std::string_view otherwise);

// The value if it is an integer that int64 holds.
std::optional<int64_t> AsInteger(const nlohmann::json& value);

}  // namespace smartgen::model
