// Puts the sources together: file, environment, flags.
#include <unistd.h>

#include <optional>
#include <set>

#include "common/config/binder.h"
#include "common/config/schema.h"
#include "common/config/version.h"

namespace smartgen::config {
namespace {

using Environment = std::vector<std::pair<std::string, std::string>>;
constexpr std::string_view kPrefix = "SMARTGEN_";
constexpr std::string_view kConfigVariable = "SMARTGEN_CONFIG";

Environment OurEnvironment(const Source& source) {
  Environment all = source.environment;
  if (all.empty() && source.use_process_environment) {
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
      const std::string_view text = *entry;
      const size_t equals = text.find('=');
      if (equals == std::string_view::npos) continue;
      all.emplace_back(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  std::erase_if(all, [](const auto& entry) { return !entry.first.starts_with(kPrefix); });
  return all;
}

// The secret that NAME_file (in any spelling) fills; nullptr if it is none.
const Leaf* FindSecretFile(const Schema& schema, std::string_view name) {
  const std::string spelling = Spelling(name);
  if (!spelling.ends_with("_file")) return nullptr;
  const Leaf* leaf =
      schema.FindBySpelling(std::string_view(spelling).substr(0, spelling.size() - 5));
  return leaf != nullptr && leaf->kind == Kind::kSecret ? leaf : nullptr;
}

// A secret and its file at one level contradict each other.
class SecretsSeen {
 public:
  absl::Status Add(const Leaf& leaf, bool as_file, std::string_view where) {
    if (leaf.kind != Kind::kSecret) return absl::OkStatus();
    if (!as_file) direct_.insert(leaf.path);
    if (as_file) file_.insert(leaf.path);
    if (direct_.contains(leaf.path) && file_.contains(leaf.path)) {
      return base::InvalidArgument("{}: give one of {} and {}_file", where, leaf.path, leaf.path);
    }
    return absl::OkStatus();
  }

 private:
  std::set<std::string> direct_;
  std::set<std::string> file_;
};

absl::Status ApplyEnvironment(const Schema& schema, const Environment& environment,
                              const Source& source) {
  const std::set<std::string> known(source.known_environment.begin(),
                                    source.known_environment.end());
  SecretsSeen secrets;
  for (const auto& [name, value] : environment) {
    if (known.contains(name)) continue;
    const std::string where = "environment variable " + name;
    const std::string_view key = std::string_view(name).substr(kPrefix.size());
    if (const Leaf* leaf = schema.FindBySpelling(key)) {
      RETURN_IF_ERROR(secrets.Add(*leaf, false, where));
      RETURN_IF_ERROR(Assign(*leaf, value, where));
    } else if (const Leaf* secret = FindSecretFile(schema, key)) {
      RETURN_IF_ERROR(secrets.Add(*secret, true, where));
      RETURN_IF_ERROR(AssignSecretFile(*secret, value, where));
    } else {
      return base::InvalidArgument("{}: no key of {} has this name{}", where, source.program,
                                   schema.Suggest(Spelling(key)));
    }
  }
  return absl::OkStatus();
}

struct Flag {
  std::string name;  // without dashes
  std::optional<std::string> value;
};

struct Arguments {
  std::vector<Flag> flags;
  std::optional<std::string> config_file;
  bool help = false;
  bool version = false;
  bool print_config = false;
  std::vector<std::string> positional;
};

class ArgumentParser {
 public:
  ArgumentParser(const Schema& schema, const Source& source) : schema_(schema), source_(source) {}

  absl::StatusOr<Arguments> Parse() {
    while (next_ < source_.args.size()) {
      const std::string& arg = source_.args[next_++];
      if (arg == "--") {
        while (next_ < source_.args.size()) out_.positional.push_back(source_.args[next_++]);
      } else if (arg == "--help" || arg == "-h") {
        out_.help = true;
      } else if (arg == "--version") {
        out_.version = true;
      } else if (arg == "--print-config") {
        out_.print_config = true;
      } else if (arg.starts_with("--")) {
        RETURN_IF_ERROR(TakeFlag(arg.substr(2)));
      } else {
        out_.positional.push_back(arg);
      }
    }
    return std::move(out_);
  }

 private:
  absl::Status TakeFlag(std::string_view text) {
    const size_t equals = text.find('=');
    Flag flag{.name = std::string(text.substr(0, equals)), .value = std::nullopt};
    if (equals != std::string_view::npos) flag.value = std::string(text.substr(equals + 1));
    const Leaf* leaf = schema_.FindBySpelling(flag.name);
    const bool is_config = flag.name == "config";
    if (leaf == nullptr && !is_config && FindSecretFile(schema_, flag.name) == nullptr) {
      return base::InvalidArgument("--{}: {} has no such flag{} (see --help)", flag.name,
                                   source_.program, schema_.Suggest(flag.name));
    }
    if (!flag.value && leaf != nullptr && leaf->kind == Kind::kBool) flag.value = "true";
    if (!flag.value) {
      if (next_ == source_.args.size() || source_.args[next_].starts_with("--")) {
        return base::InvalidArgument("--{}: want a value (--{}=VALUE)", flag.name, flag.name);
      }
      flag.value = source_.args[next_++];
    }
    if (is_config) {
      out_.config_file = *flag.value;
    } else {
      out_.flags.push_back(std::move(flag));
    }
    return absl::OkStatus();
  }

  const Schema& schema_;
  const Source& source_;
  size_t next_ = 0;
  Arguments out_;
};

absl::Status ApplyFlags(const Schema& schema, const std::vector<Flag>& flags) {
  SecretsSeen secrets;
  std::set<std::string> lists_begun;
  for (const Flag& flag : flags) {
    const std::string where = "--" + flag.name;
    const Leaf* leaf = schema.FindBySpelling(flag.name);
    if (leaf == nullptr) {
      leaf = FindSecretFile(schema, flag.name);
      RETURN_IF_ERROR(secrets.Add(*leaf, true, where));
      RETURN_IF_ERROR(AssignSecretFile(*leaf, *flag.value, where));
      continue;
    }
    RETURN_IF_ERROR(secrets.Add(*leaf, false, where));
    if (leaf->kind == Kind::kList && !lists_begun.insert(leaf->path).second) {
      std::vector<std::string> items = *std::get<std::vector<std::string>*>(leaf->target);
      for (std::string& item : SplitList(*flag.value)) items.push_back(std::move(item));
      RETURN_IF_ERROR(AssignList(*leaf, std::move(items), where));
      continue;
    }
    RETURN_IF_ERROR(Assign(*leaf, *flag.value, where));
  }
  return absl::OkStatus();
}

absl::Status ApplyFile(const Schema& schema, const Arguments& arguments,
                       const Environment& environment) {
  std::optional<std::string> file = arguments.config_file;
  std::string named_by = "--config";
  for (const auto& [name, value] : environment) {
    if (name == kConfigVariable && !value.empty() && !file) {
      file = value;
      named_by = "environment variable " + name;
    }
  }
  if (!file) return absl::OkStatus();
  absl::StatusOr<std::string> text = ReadSmallFile(*file, kMaxConfigFileBytes);
  if (!text.ok()) return base::Annotate(text.status(), named_by);
  return ApplyYaml(schema, *text, *file);
}

}  // namespace

std::string_view SoftwareVersion() { return SMARTGEN_VERSION; }

absl::StatusOr<LoadResult> Load(const Source& source, const std::function<void(Binder&)>& bind) {
  ASSIGN_OR_RETURN(const Schema schema, Describe(bind));
  ASSIGN_OR_RETURN(Arguments arguments, ArgumentParser(schema, source).Parse());
  LoadResult result;
  result.positional = std::move(arguments.positional);
  if (arguments.help || arguments.version) {
    result.exit_now = true;
    result.text = arguments.help ? HelpText(schema, source)
                                 : fmt::format("{} {}\n", source.program, SoftwareVersion());
    return result;
  }
  const Environment environment = OurEnvironment(source);
  RETURN_IF_ERROR(ApplyFile(schema, arguments, environment));
  RETURN_IF_ERROR(ApplyEnvironment(schema, environment, source));
  RETURN_IF_ERROR(ApplyFlags(schema, arguments.flags));
  for (const auto& check : schema.checks) RETURN_IF_ERROR(check());
  if (arguments.print_config) {
    result.exit_now = true;
    result.text = PrintConfig(schema, source.program);
  }
  return result;
}

}  // namespace smartgen::config
