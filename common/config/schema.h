// Internal to common/config: what a bind function named, as data.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "common/config/binder.h"

namespace smartgen::config {

enum class Kind { kString, kBool, kInt, kInt64, kDouble, kList, kTime, kBytes, kChoice, kSecret };

// One key. `target` points into the caller's Options.
struct Leaf {
  std::string path;  // "log.level"
  Kind kind = Kind::kString;
  std::variant<std::string*, bool*, int*, int64_t*, double*, std::vector<std::string>*,
               base::Duration*>
      target;
  std::vector<std::string> choices;
  std::string help;
  std::string default_text;  // the target's value before anything was read, masked if secret
};

// Sections in the order of binding, for --print-config and --help.
struct Schema {
  std::vector<Leaf> leaves;
  std::vector<std::string> sections;  // paths
  std::vector<std::function<absl::Status()>> checks;

  const Leaf* Find(std::string_view path) const;
  bool IsSection(std::string_view path) const;
  // The leaf whose environment name or flag this is, whatever separators the user chose.
  const Leaf* FindBySpelling(std::string_view name) const;
  // ", did you mean log.level?" or "" where nothing is near.
  std::string Suggest(std::string_view path) const;
};

// Runs `bind`. Internal (a bug in the caller's Bind) where two keys have the same name or spelling.
absl::StatusOr<Schema> Describe(const std::function<void(Binder&)>& bind);

// Lower case with every separator (. - _) turned into _: "log.level", "log-level", "LOG_LEVEL"
// agree.
std::string Spelling(std::string_view name);
std::string EnvironmentName(std::string_view path);  // SMARTGEN_LOG_LEVEL

// Parses `text` into the leaf's target; `where` ("config.yaml:3", "--log.level") leads the message.
absl::Status Assign(const Leaf& leaf, std::string_view text, std::string_view where);
absl::Status AssignList(const Leaf& leaf, std::vector<std::string> items, std::string_view where);
std::vector<std::string> SplitList(std::string_view text);
// The content of the file that KEY_file names.
absl::Status AssignSecretFile(const Leaf& leaf, const std::string& file, std::string_view where);

// What the target holds now, as Assign reads it; secrets as "***". Lists: comma-separated.
std::string ValueText(const Leaf& leaf);
// "number", "one of a, b", ... for messages and help.
std::string WhatIsWanted(const Leaf& leaf);

// The sources and outputs, each in a file of its own.
absl::Status ApplyYaml(const Schema& schema, std::string_view text, const std::string& file);
std::string PrintConfig(const Schema& schema, std::string_view program);
std::string HelpText(const Schema& schema, const Source& source);

// A secret's masked form; refused as a value, since it is what a copied --print-config holds.
inline constexpr std::string_view kMask = "***";
inline constexpr size_t kMaxConfigFileBytes = 1 << 20;
inline constexpr size_t kMaxSecretFileBytes = 1 << 16;
// Whole file; InvalidArgument above `max_bytes`, NotFound where there is none.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes);

}  // namespace smartgen::config
