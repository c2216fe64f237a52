// Text tables that read well in a terminal and are Markdown.
#pragma once

#include <string>
#include <vector>

namespace smartgen::tools::bench {

class Table {
 public:
  // `left`: the column's cells stand at the left; numbers at the right.
  void AddColumn(std::string name, bool left = false);
  // One cell a column.
  void AddRow(std::vector<std::string> cells);
  // Columns whose cells are all empty are left out; other empty cells show "-".
  std::string Render() const;

 private:
  struct Column {
    std::string name;
    bool left = false;
  };
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace smartgen::tools::bench
