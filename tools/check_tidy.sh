#!/bin/bash
# Runs clang-tidy with the checks of .clang-tidy.
#
# Usage: tools/check_tidy.sh                 all .cc files of the release build
#        tools/check_tidy.sh --since REF     those that differ from the git revision REF (a changed header
#                                            stands for the .cc beside it)
#        tools/check_tidy.sh FILE.cc...
#
# Needs build/release/compile_commands.json (cmake --preset release) and, for sources that include generated
# code, a build. JOBS is the number of processes (2).
set -euo pipefail
cd "$(dirname "$0")/.."

clang_tidy=${CLANG_TIDY:-clang-tidy-14}
database=build/release/compile_commands.json
if ! command -v "$clang_tidy" > /dev/null; then
  echo "check_tidy: $clang_tidy is not installed (tools/install_deps.sh installs it)" >&2
  exit 2
fi
if [ ! -f "$database" ]; then
  echo "check_tidy: $database is missing; run: cmake --preset release" >&2
  exit 2
fi

if [ "${1:-}" = --since ]; then
  [ $# -eq 2 ] || { echo "usage: tools/check_tidy.sh [--since REF | FILE.cc...]" >&2; exit 2; }
  changed=$(git diff --name-only --diff-filter=d "$2" -- '*.h' '*.cc')
  changed+=$'\n'$(git ls-files --others --exclude-standard -- '*.h' '*.cc')
  wanted=$(sed 's/\.h$/.cc/' <<< "$changed" | sort -u)
elif [ $# -gt 0 ]; then
  for file in "$@"; do
    [ -f "$file" ] || { echo "check_tidy: no such file: $file" >&2; exit 2; }
  done
  wanted=$(printf '%s\n' "$@")
else
  wanted=
fi

# Only what the build knows can be checked: the database has its flags.
mapfile -t files < <(python3 - "$database" "$wanted" << 'PYTHON'
import json, os, sys
known = {os.path.relpath(entry["file"]) for entry in json.load(open(sys.argv[1]))}
known = {path for path in known if path.endswith(".cc") and not path.startswith("build/")}
wanted = set(os.path.relpath(path) for path in sys.argv[2].split("\n") if path)
for path in sorted(known & wanted if sys.argv[2] else known):
    if os.path.exists(path):
        print(path)
PYTHON
)
if [ ${#files[@]} -eq 0 ]; then
  echo "tidy: nothing to check"
  [ $# -eq 0 ] && exit 2
  [ "$1" = --since ] && exit 0
  echo "check_tidy: the files are not in $database" >&2
  exit 2
fi
printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "${JOBS:-2}" "$clang_tidy" -p build/release --quiet
echo "tidy: ${#files[@]} files"
