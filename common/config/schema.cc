#include "common/config/schema.h"

#include <algorithm>
#include <cctype>
#include <numeric>

namespace smartgen::config {
namespace {

class Collector final : public Binder {
 public:
  Collector(Schema* schema, std::string prefix) : schema_(schema), prefix_(std::move(prefix)) {}

  void Field(std::string_view key, std::string* target, std::string_view help) override {
    Add(key, Kind::kString, target, help);
  }
  void Field(std::string_view key, bool* target, std::string_view help) override {
    Add(key, Kind::kBool, target, help);
  }
  void Field(std::string_view key, int* target, std::string_view help) override {
    Add(key, Kind::kInt, target, help);
  }
  void Field(std::string_view key, int64_t* target, std::string_view help) override {
    Add(key, Kind::kInt64, target, help);
  }
  void Field(std::string_view key, double* target, std::string_view help) override {
    Add(key, Kind::kDouble, target, help);
  }
  void Field(std::string_view key, std::vector<std::string>* target,
             std::string_view help) override {
    Add(key, Kind::kList, target, help);
  }
  void Time(std::string_view key, base::Duration* target, std::string_view help) override {
    Add(key, Kind::kTime, target, help);
  }
  void Bytes(std::string_view key, int64_t* target, std::string_view help) override {
    Add(key, Kind::kBytes, target, help);
  }
  void Choice(std::string_view key, std::string* target, std::vector<std::string> choices,
              std::string_view help) override {
    Add(key, Kind::kChoice, target, help);
    schema_->leaves.back().choices = std::move(choices);
  }
  void Secret(std::string_view key, std::string* target, std::string_view help) override {
    Add(key, Kind::kSecret, target, help);
  }
  void Section(std::string_view key, const std::function<void(Binder&)>& bind) override {
    const std::string path = prefix_ + std::string(key);
    schema_->sections.push_back(path);
    Collector inner(schema_, path + ".");
    bind(inner);
  }
  void Check(std::function<absl::Status()> check) override {
    schema_->checks.push_back(std::move(check));
  }

 private:
  template <typename T>
  void Add(std::string_view key, Kind kind, T* target, std::string_view help) {
    Leaf leaf;
    leaf.path = prefix_ + std::string(key);
    leaf.kind = kind;
    leaf.target = target;
    leaf.help = std::string(help);
    leaf.default_text = ValueText(leaf);
    schema_->leaves.push_back(std::move(leaf));
  }

  Schema* schema_;
  std::string prefix_;
};

int EditDistance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

std::string_view LastPart(std::string_view path) { return path.substr(path.rfind('.') + 1); }

}  // namespace

std::string Spelling(std::string_view name) {
  std::string spelling(name);
  for (char& c : spelling) {
    c = c == '.' || c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return spelling;
}

std::string EnvironmentName(std::string_view path) {
  std::string name = "SMARTGEN_" + Spelling(path);
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

const Leaf* Schema::Find(std::string_view path) const {
  const auto it =
      std::find_if(leaves.begin(), leaves.end(), [&](const Leaf& l) { return l.path == path; });
  return it == leaves.end() ? nullptr : &*it;
}

bool Schema::IsSection(std::string_view path) const {
  return std::find(sections.begin(), sections.end(), path) != sections.end();
}

const Leaf* Schema::FindBySpelling(std::string_view name) const {
  const std::string spelling = Spelling(name);
  for (const Leaf& leaf : leaves) {
    if (Spelling(leaf.path) == spelling) return &leaf;
  }
  return nullptr;
}

std::string Schema::Suggest(std::string_view path) const {
  // A right name in the wrong section is as likely as a typo in the right one.
  constexpr size_t kMaxUsefulLength = 100;
  if (path.size() > kMaxUsefulLength) return "";
  const std::string wanted = Spelling(path);
  std::string_view best;
  int best_distance = static_cast<int>(wanted.size() / 3) + 2;  // farther is no help
  const auto consider = [&](std::string_view candidate) {
    int distance = EditDistance(wanted, Spelling(candidate));
    if (LastPart(candidate) == LastPart(path)) distance = std::min(distance, 1);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  };
  for (const Leaf& leaf : leaves) consider(leaf.path);
  for (const std::string& section : sections) consider(section);
  return best.empty() ? "" : fmt::format("; did you mean {}?", best);
}

absl::StatusOr<Schema> Describe(const std::function<void(Binder&)>& bind) {
  Schema schema;
  Collector collector(&schema, "");
  bind(collector);
  std::vector<std::pair<std::string, std::string>> seen;
  for (const Leaf& leaf : schema.leaves) {
    seen.emplace_back(Spelling(leaf.path), leaf.path);
    if (leaf.kind == Kind::kSecret) seen.emplace_back(Spelling(leaf.path + "_file"), leaf.path);
  }
  std::sort(seen.begin(), seen.end());
  for (size_t i = 1; i < seen.size(); ++i) {
    if (seen[i].first == seen[i - 1].first) {
      return base::Internal("configuration keys {} and {} have the same environment name",
                            seen[i - 1].second, seen[i].second);
    }
  }
  return schema;
}

}  // namespace smartgen::config
