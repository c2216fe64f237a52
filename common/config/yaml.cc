// The YAML source.
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <set>
#include <sstream>

#include "common/config/schema.h"

namespace smartgen::config {
namespace {

class YamlReader {
 public:
  YamlReader(const Schema& schema, const std::string& file) : schema_(schema), file_(file) {}

  // `path` is "" or a section's path.
  absl::Status ReadMap(const YAML::Node& map, const std::string& path) {
    std::set<std::string> seen;
    for (const auto& entry : map) {
      if (!entry.first.IsScalar()) {
        return base::InvalidArgument("{}: a key is not plain text", Where(entry.first));
      }
      const std::string key = entry.first.Scalar();
      const std::string full = path.empty() ? key : path + "." + key;
      if (!seen.insert(key).second) {
        return base::InvalidArgument("{}: {} is given twice", Where(entry.first), full);
      }
      RETURN_IF_ERROR(ReadEntry(entry.first, entry.second, full));
    }
    return CheckSecretsOnce(map, path, seen);
  }

  std::string Where(const YAML::Node& node) const {
    return node.Mark().is_null() ? file_ : fmt::format("{}:{}", file_, node.Mark().line + 1);
  }

 private:
  absl::Status ReadEntry(const YAML::Node& key, const YAML::Node& value, const std::string& full) {
    if (schema_.IsSection(full)) return ReadSection(key, value, full);
    if (const Leaf* leaf = schema_.Find(full)) return ReadLeaf(key, value, *leaf);
    if (full.ends_with("_file")) {
      const Leaf* leaf = schema_.Find(std::string_view(full).substr(0, full.size() - 5));
      if (leaf != nullptr && leaf->kind == Kind::kSecret && value.IsScalar()) {
        return AssignSecretFile(*leaf, value.Scalar(), Where(key));
      }
    }
    return base::InvalidArgument("{}: unknown key {}{}", Where(key), full.substr(0, 200),
                                 schema_.Suggest(full));
  }

  absl::Status ReadSection(const YAML::Node& key, const YAML::Node& value,
                           const std::string& full) {
    if (value.IsNull()) return absl::OkStatus();  // "log:" with every key below commented out
    if (!value.IsMap()) {
      return base::InvalidArgument("{}: {} is a section: want keys below it", Where(key), full);
    }
    return ReadMap(value, full);
  }

  absl::Status ReadLeaf(const YAML::Node& key, const YAML::Node& value, const Leaf& leaf) {
    if (leaf.kind == Kind::kList) return ReadList(key, value, leaf);
    if (!value.IsScalar()) {
      return base::InvalidArgument("{}: {}: want {}, got {}", Where(key), leaf.path,
                                   WhatIsWanted(leaf),
                                   value.IsNull()  ? "nothing"
                                   : value.IsMap() ? "a section"
                                                   : "a list");
    }
    return Assign(leaf, value.Scalar(), Where(value));
  }

  absl::Status ReadList(const YAML::Node& key, const YAML::Node& value, const Leaf& leaf) {
    if (!value.IsSequence()) {
      return base::InvalidArgument("{}: {}: want a list, such as [a, b]", Where(key), leaf.path);
    }
    std::vector<std::string> items;
    for (const YAML::Node& item : value) {
      if (!item.IsScalar()) {
        return base::InvalidArgument("{}: {}: want text as list items", Where(item), leaf.path);
      }
      items.push_back(item.Scalar());
    }
    return AssignList(leaf, std::move(items), Where(key));
  }

  absl::Status CheckSecretsOnce(const YAML::Node& map, const std::string& path,
                                const std::set<std::string>& seen) const {
    for (const std::string& key : seen) {
      const Leaf* leaf = schema_.Find(path.empty() ? key : path + "." + key);
      if (leaf != nullptr && leaf->kind == Kind::kSecret && seen.contains(key + "_file")) {
        return base::InvalidArgument("{}: give one of {} and {}_file", Where(map), leaf->path,
                                     leaf->path);
      }
    }
    return absl::OkStatus();
  }

  const Schema& schema_;
  const std::string& file_;
};

// For reading a document without keeping it.
class Ignore final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// Not by YAML::LoadAll, which on some inputs finds documents without end (and keeps them).
bool HasSecondDocument(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Ignore ignore;
  return parser.HandleNextDocument(ignore) && parser.HandleNextDocument(ignore);
}

}  // namespace

absl::Status ApplyYaml(const Schema& schema, std::string_view text, const std::string& file) {
  // yaml-cpp reports by exception; none leaves this function.
  try {
    const std::string content(text);
    if (HasSecondDocument(content)) {
      return base::InvalidArgument("{}: want one YAML document, got more", file);
    }
    const YAML::Node document = YAML::Load(content);
    if (!document.IsDefined() || document.IsNull()) return absl::OkStatus();
    YamlReader reader(schema, file);
    if (!document.IsMap()) {
      return base::InvalidArgument("{}: want keys with values (key: value)",
                                   reader.Where(document));
    }
    return reader.ReadMap(document, "");
  } catch (const YAML::Exception& error) {
    return base::InvalidArgument("{}:{}: not YAML: {}", file, error.mark.line + 1, error.msg);
  }
}

}  // namespace smartgen::config
