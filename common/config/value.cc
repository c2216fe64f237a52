// Text to values and back.
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <system_error>

#include "common/config/schema.h"

namespace smartgen::config {
namespace {

struct Unit {
  std::string_view name;
  int64_t size;
};
constexpr std::array<Unit, 6> kTimeUnits = {{{"h", 3'600'000'000'000},
                                             {"m", 60'000'000'000},
                                             {"s", 1'000'000'000},
                                             {"ms", 1'000'000},
                                             {"us", 1'000},
                                             {"ns", 1}}};
constexpr std::array<Unit, 9> kByteUnits = {{{"TiB", int64_t{1} << 40},
                                             {"GiB", int64_t{1} << 30},
                                             {"MiB", int64_t{1} << 20},
                                             {"KiB", int64_t{1} << 10},
                                             {"TB", 1'000'000'000'000},
                                             {"GB", 1'000'000'000},
                                             {"MB", 1'000'000},
                                             {"KB", 1'000},
                                             {"B", 1}}};
constexpr std::string_view kTimeForm =
    "a time with its unit, such as 250ms, 30s, 5m or 2h (units: ns, us, ms, s, m, h)";
constexpr std::string_view kBytesForm =
    "a number of bytes, such as 512MiB, 4GiB or 1000000 (units: B, KiB, MiB, GiB, TiB, KB, MB, GB, "
    "TB)";

template <typename T>
std::optional<T> ParseNumber(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> ParseDouble(std::string_view text) {
  const auto value = ParseNumber<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

// "<number>" whole or decimal, then a unit. nullopt: not that, or beyond int64.
template <size_t N>
std::optional<int64_t> ParseQuantity(std::string_view text, const std::array<Unit, N>& units,
                                     std::optional<int64_t> size_without_unit) {
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view number = text.substr(0, digits);
  std::string_view unit_name = text.substr(digits);
  while (unit_name.starts_with(' ')) unit_name.remove_prefix(1);
  bool known = unit_name.empty() && size_without_unit.has_value();
  int64_t size = known ? *size_without_unit : 0;
  for (const Unit& unit : units) {
    if (unit.name != unit_name) continue;
    size = unit.size;
    known = true;
  }
  if (!known) return std::nullopt;
  if (const auto whole = ParseNumber<int64_t>(number)) {
    int64_t product = 0;
    if (__builtin_mul_overflow(*whole, size, &product)) return std::nullopt;
    return product;
  }
  const auto real = ParseDouble(number);
  if (!real || *real * static_cast<double>(size) >= 9.2e18) return std::nullopt;
  return std::llround(*real * static_cast<double>(size));
}

template <size_t N>
std::string QuantityText(int64_t value, const std::array<Unit, N>& units, std::string_view bare) {
  for (const Unit& unit : units) {
    // Decimal byte units never come out: 4GiB is what a reader expects to see again.
    if (unit.name.size() == 2 && unit.name[1] == 'B') continue;
    if (value != 0 && value % unit.size == 0 && unit.size > 1) {
      return fmt::format("{}{}", value / unit.size, unit.name);
    }
  }
  return fmt::format("{}{}", value, bare);
}

absl::Status Refuse(const Leaf& leaf, std::string_view text, std::string_view where) {
  const std::string shown =
      leaf.kind == Kind::kSecret ? std::string(kMask) : std::string(text.substr(0, 200));
  return base::InvalidArgument("{}: {}: want {}, got \"{}\"", where, leaf.path, WhatIsWanted(leaf),
                               shown);
}

template <typename T>
absl::Status Store(const Leaf& leaf, std::optional<T> value, std::string_view text,
                   std::string_view where) {
  if (!value) return Refuse(leaf, text, where);
  *std::get<T*>(leaf.target) = *value;
  return absl::OkStatus();
}

std::optional<bool> ParseBool(std::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  return std::nullopt;
}

absl::Status AssignChoice(const Leaf& leaf, std::string_view text, std::string_view where) {
  for (const std::string& choice : leaf.choices) {
    if (choice == text) {
      *std::get<std::string*>(leaf.target) = choice;
      return absl::OkStatus();
    }
  }
  return Refuse(leaf, text, where);
}

absl::Status AssignSecret(const Leaf& leaf, std::string_view text, std::string_view where) {
  if (text == kMask) {
    return base::InvalidArgument(
        "{}: {}: \"{}\" is what --print-config shows in a secret's place; put the secret there, or "
        "name a file that holds it with {}_file",
        where, leaf.path, kMask, leaf.path);
  }
  *std::get<std::string*>(leaf.target) = std::string(text);
  return absl::OkStatus();
}

std::string JoinList(const std::vector<std::string>& items) {
  return fmt::format("{}", fmt::join(items, ","));
}

}  // namespace

std::string WhatIsWanted(const Leaf& leaf) {
  switch (leaf.kind) {
    case Kind::kString:
    case Kind::kSecret:
      return "text";
    case Kind::kBool:
      return "true or false";
    case Kind::kInt:
      return fmt::format("a whole number from {} to {}", std::numeric_limits<int>::min(),
                         std::numeric_limits<int>::max());
    case Kind::kInt64:
      return "a whole number";
    case Kind::kDouble:
      return "a number";
    case Kind::kList:
      return "a list";
    case Kind::kTime:
      return std::string(kTimeForm);
    case Kind::kBytes:
      return std::string(kBytesForm);
    case Kind::kChoice:
      return fmt::format("one of {}", fmt::join(leaf.choices, ", "));
  }
  return "";
}

absl::Status Assign(const Leaf& leaf, std::string_view text, std::string_view where) {
  switch (leaf.kind) {
    case Kind::kString:
      return Store<std::string>(leaf, std::string(text), text, where);
    case Kind::kSecret:
      return AssignSecret(leaf, text, where);
    case Kind::kBool:
      return Store<bool>(leaf, ParseBool(text), text, where);
    case Kind::kInt:
      return Store<int>(leaf, ParseNumber<int>(text), text, where);
    case Kind::kInt64:
      return Store<int64_t>(leaf, ParseNumber<int64_t>(text), text, where);
    case Kind::kDouble:
      return Store<double>(leaf, ParseDouble(text), text, where);
    case Kind::kList:
      return AssignList(leaf, SplitList(text), where);
    case Kind::kTime: {
      const auto ns = ParseQuantity(text, kTimeUnits, std::nullopt);
      return Store<base::Duration>(leaf, ns ? std::optional(base::Duration(*ns)) : std::nullopt,
                                   text, where);
    }
    case Kind::kBytes:
      return Store<int64_t>(leaf, ParseQuantity(text, kByteUnits, 1), text, where);
    case Kind::kChoice:
      return AssignChoice(leaf, text, where);
  }
  return base::Internal("{}: unknown kind", leaf.path);
}

absl::Status AssignList(const Leaf& leaf, std::vector<std::string> items, std::string_view where) {
  for (const std::string& item : items) {
    if (item.empty()) {
      return base::InvalidArgument("{}: {}: the list has an empty item", where, leaf.path);
    }
  }
  *std::get<std::vector<std::string>*>(leaf.target) = std::move(items);
  return absl::OkStatus();
}

std::vector<std::string> SplitList(std::string_view text) {
  std::vector<std::string> items;
  if (text.empty()) return items;
  while (true) {
    const size_t comma = text.find(',');
    std::string_view item = text.substr(0, comma);
    while (item.starts_with(' ')) item.remove_prefix(1);
    while (item.ends_with(' ')) item.remove_suffix(1);
    items.emplace_back(item);
    if (comma == std::string_view::npos) return items;
    text.remove_prefix(comma + 1);
  }
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes) {
  std::ifstream in(path, std::ios::binary);
  if (!in)
    return base::NotFound("cannot read {}: {}", path, std::generic_category().message(errno));
  std::string content(max_bytes + 1, '\0');
  in.read(content.data(), static_cast<std::streamsize>(content.size()));
  if (in.bad() || (in.fail() && !in.eof())) return base::NotFound("cannot read {}", path);
  const size_t got = static_cast<size_t>(in.gcount());
  if (got > max_bytes) {
    return base::InvalidArgument("{} is longer than {} bytes", path, max_bytes);
  }
  content.resize(got);
  return content;
}

absl::Status AssignSecretFile(const Leaf& leaf, const std::string& file, std::string_view where) {
  absl::StatusOr<std::string> content = ReadSmallFile(file, kMaxSecretFileBytes);
  if (!content.ok()) {
    return base::Annotate(content.status(), fmt::format("{}: {}_file", where, leaf.path));
  }
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = std::min(content->find_first_not_of(kSpace), content->size());
  const size_t end = content->find_last_not_of(kSpace);
  if (begin == content->size()) {
    return base::InvalidArgument("{}: {}_file: {} is empty", where, leaf.path, file);
  }
  *std::get<std::string*>(leaf.target) = content->substr(begin, end - begin + 1);
  return absl::OkStatus();
}

std::string ValueText(const Leaf& leaf) {
  switch (leaf.kind) {
    case Kind::kString:
    case Kind::kChoice:
      return *std::get<std::string*>(leaf.target);
    case Kind::kSecret:
      return std::get<std::string*>(leaf.target)->empty() ? "" : std::string(kMask);
    case Kind::kBool:
      return *std::get<bool*>(leaf.target) ? "true" : "false";
    case Kind::kInt:
      return fmt::format("{}", *std::get<int*>(leaf.target));
    case Kind::kInt64:
      return fmt::format("{}", *std::get<int64_t*>(leaf.target));
    case Kind::kDouble:
      return fmt::format("{}", *std::get<double*>(leaf.target));
    case Kind::kList:
      return JoinList(*std::get<std::vector<std::string>*>(leaf.target));
    case Kind::kTime:
      return QuantityText(std::get<base::Duration*>(leaf.target)->count(), kTimeUnits, "ns");
    case Kind::kBytes:
      return QuantityText(*std::get<int64_t*>(leaf.target), kByteUnits, "");
  }
  return "";
}

}  // namespace smartgen::config
