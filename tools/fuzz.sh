#!/usr/bin/env bash
# Runs every fuzz target of the fuzz preset for SECONDS (default 60) each, two at a time.
#
#   tools/fuzz.sh [SECONDS] [TARGET...]
#
# Findings are written to build/fuzz/findings; the exit status is 1 if there is one.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
shift || true
bin=build/fuzz/bin
findings=build/fuzz/findings
mkdir -p "$findings"

targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for path in "$bin"/fuzz_*; do
    [ -x "$path" ] && targets+=("$(basename "$path")")
  done
fi
if [ ${#targets[@]} -eq 0 ]; then
  echo "fuzz.sh: no targets in $bin; build them: cmake --preset fuzz && cmake --build --preset fuzz" >&2
  exit 1
fi

run_one() {
  local target=$1 corpus="build/fuzz/corpus/$1"
  mkdir -p "$corpus"
  local seeds="tests/fuzz/corpus/${target#fuzz_}"
  local folders=("$corpus")
  [ -d "$seeds" ] && folders+=("$seeds")
  if "$bin/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$findings/$target-" "${folders[@]}" >"$findings/$target.log" 2>&1; then
    echo "$target: no finding in ${seconds} s," \
      "$(sed -n 's/^stat::number_of_executed_units: */runs: /p' "$findings/$target.log")"
  else
    echo "$target: FINDING, see $findings/$target.log"
    tail -n 30 "$findings/$target.log"
    return 1
  fi
}

status=0
pids=()
for target in "${targets[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge 2 ]; do sleep 0.2; done
  run_one "$target" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || status=1; done
exit $status
