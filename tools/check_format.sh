#!/bin/bash
# Checks that every source of the project is formatted as .clang-format says.
#
# Usage: tools/check_format.sh [--fix]
set -euo pipefail
cd "$(dirname "$0")/.."

clang_format=${CLANG_FORMAT:-clang-format-14}
if ! command -v "$clang_format" > /dev/null; then
  echo "check_format: $clang_format is not installed (tools/install_deps.sh installs it)" >&2
  exit 2
fi
case "${1:-}" in
  "") mode=(--dry-run -Werror) ;;
  --fix) mode=(-i) ;;
  *) echo "usage: tools/check_format.sh [--fix]" >&2; exit 2 ;;
esac

# Tracked files and new ones that git does not ignore; not those that were deleted but are still in the index.
mapfile -t files < <(git ls-files --cached --others --exclude-standard -- '*.h' '*.cc' '*.cu' '*.cuh' |
  while read -r file; do [ -f "$file" ] && echo "$file"; done)
if [ ${#files[@]} -eq 0 ]; then
  echo "check_format: no sources found; want a git checkout of the repository" >&2
  exit 2
fi
"$clang_format" "${mode[@]}" "${files[@]}"
echo "format: ${#files[@]} files"
