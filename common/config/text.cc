// --print-config and --help.
#include <algorithm>

#include "common/config/schema.h"

namespace smartgen::config {
namespace {

// Double-quoted YAML; every string is quoted, so that no value is ever read as another type.
std::string Quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string YamlValue(const Leaf& leaf) {
  switch (leaf.kind) {
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kInt64:
    case Kind::kDouble:
    case Kind::kTime:
    case Kind::kBytes:
      return ValueText(leaf);
    case Kind::kList: {
      std::string out = "[";
      for (const std::string& item : *std::get<std::vector<std::string>*>(leaf.target)) {
        if (out.size() > 1) out += ", ";
        out += Quote(item);
      }
      return out + "]";
    }
    default:
      return Quote(ValueText(leaf));
  }
}

std::string_view Parent(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

std::string_view LastPart(std::string_view path) { return path.substr(path.rfind('.') + 1); }

// Keys of a section first, then its sections: a YAML mapping has no order to keep.
void PrintSection(const Schema& schema, std::string_view path, int indent, std::string& out) {
  const std::string pad(static_cast<size_t>(indent), ' ');
  for (const Leaf& leaf : schema.leaves) {
    if (Parent(leaf.path) != path) continue;
    if (!leaf.help.empty()) out += fmt::format("{}# {}\n", pad, leaf.help);
    out += fmt::format("{}{}: {}\n", pad, LastPart(leaf.path), YamlValue(leaf));
  }
  std::vector<std::string_view> done;
  for (const std::string& section : schema.sections) {
    if (Parent(section) != path || section == path) continue;
    // Two Bind functions may add to one section.
    if (std::find(done.begin(), done.end(), section) != done.end()) continue;
    done.push_back(section);
    out += fmt::format("{}{}:\n", pad, LastPart(section));
    PrintSection(schema, section, indent + 2, out);
  }
}

std::string TypeText(const Leaf& leaf) {
  switch (leaf.kind) {
    case Kind::kString:
      return "TEXT";
    case Kind::kSecret:
      return "SECRET";
    case Kind::kBool:
      return "true|false";
    case Kind::kInt:
    case Kind::kInt64:
    case Kind::kDouble:
      return "NUMBER";
    case Kind::kList:
      return "A,B,...";
    case Kind::kTime:
      return "TIME";
    case Kind::kBytes:
      return "BYTES";
    case Kind::kChoice:
      return fmt::format("{}", fmt::join(leaf.choices, "|"));
  }
  return "";
}

}  // namespace

std::string PrintConfig(const Schema& schema, std::string_view program) {
  std::string out = fmt::format("# Configuration of {}\n", program);
  PrintSection(schema, "", 0, out);
  return out;
}

std::string HelpText(const Schema& schema, const Source& source) {
  std::string out = fmt::format("{}: {}\n\nUsage: ", source.program, source.about);
  if (!source.usage.empty()) {
    out += source.usage + "\n\n";
  } else {
    out += fmt::format(
        "{} [--config FILE] [--KEY=VALUE ...]\n\n"
        "  --config FILE    read FILE (YAML) first; also $SMARTGEN_CONFIG\n"
        "  --print-config   print the merged configuration, secrets masked, and exit\n"
        "  --help           print this and exit\n"
        "  --version        print the version and exit\n\n"
        "The file is overridden by environment variables (key a.b: SMARTGEN_A_B), these by "
        "flags.\n\n",
        source.program);
  }
  for (const Leaf& leaf : schema.leaves) {
    out += fmt::format("  --{}={}\n      {}", leaf.path, TypeText(leaf), leaf.help);
    if (!leaf.default_text.empty()) out += fmt::format(" (default: {})", leaf.default_text);
    if (leaf.kind == Kind::kSecret) out += fmt::format("; or --{}_file=FILE", leaf.path);
    out += "\n";
  }
  return out;
}

}  // namespace smartgen::config
