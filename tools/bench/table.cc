#include "tools/bench/table.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

namespace smartgen::tools::bench {
namespace {

// Characters, not bytes: one for each that does not continue a UTF-8 sequence.
size_t Width(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string Pad(const std::string& text, size_t width, bool left) {
  const std::string space(width - std::min(width, Width(text)), ' ');
  return left ? text + space : space + text;
}

}  // namespace

void Table::AddColumn(std::string name, bool left) { columns_.push_back({std::move(name), left}); }

void Table::AddRow(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::Render() const {
  std::string header = "|";
  std::string rule = "|";
  std::vector<std::string> lines(rows_.size(), "|");
  for (size_t c = 0; c < columns_.size(); ++c) {
    const auto filled = [&](const auto& row) { return !row[c].empty(); };
    if (std::none_of(rows_.begin(), rows_.end(), filled)) continue;
    const bool left = columns_[c].left;
    size_t width = std::max<size_t>(Width(columns_[c].name), 2);
    for (const auto& row : rows_) width = std::max(width, Width(row[c]));
    header += " " + Pad(columns_[c].name, width, left) + " |";
    rule += left ? std::string(width + 2, '-') + "|" : std::string(width + 1, '-') + ":|";
    for (size_t r = 0; r < rows_.size(); ++r) {
      const std::string& cell = rows_[r][c];
      lines[r] += " " + Pad(cell.empty() ? "-" : cell, width, left) + " |";
    }
  }
  std::string text = header + "\n" + rule + "\n";
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

}  // namespace smartgen::tools::bench
