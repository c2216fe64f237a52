#!/usr/bin/env bash
# From a fresh Debian 12 machine to an answered chat request.
#
#   tools/quickstart.sh          install what is missing, build, fetch the model, start the three
#                                daemons on this machine, ask one question, stop
#   tools/quickstart.sh --keep   leave the daemons running and print how to talk to them
#
# Options: --model M (a known name, GGUF file or safetensors folder), --question TEXT.
# Run as root, or as a user who may use sudo. A second run takes seconds.
set -euo pipefail
started_in=$PWD
cd "$(dirname "$0")/.."

keep=0
model=smollm2-135m
question="Explain in two sentences why the sky is blue."
while [ $# -gt 0 ]; do
  case "$1" in
    --keep) keep=1 ;;
    --model) model=${2:?--model: want a value}; shift ;;
    --question) question=${2:?--question: want a value}; shift ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "quickstart.sh: unknown argument \"$1\" (know: --keep, --model, --question)" >&2; exit 2 ;;
  esac
  shift
done

# A path is meant from where the user stands.
if [ -e "$started_in/$model" ]; then model=$started_in/$model; fi

step() { printf '\n\033[1m==> %s\033[0m\n' "$1"; }

step "Packages"
tools/install_deps.sh

step "Build (the first takes several minutes)"
mkdir -p build
cmake --preset release >build/configure-release.log 2>&1 || { tail -n 40 build/configure-release.log; exit 1; }
cmake --build --preset release --target smartgen prefilld decoded gateway
smartgen=build/release/bin/smartgen

if [ ! -e "$model" ]; then
  step "Model"
  "$smartgen" fetch-model "$model"
fi

step "Starting prefilld, decoded and gateway"
run_dir=$(mktemp -d)
ready=$run_dir/ready.json
log=$run_dir/smartgen.log
# Its own session, so that --keep outlives this terminal.
setsid "$smartgen" up --model "$model" --ready-file "$ready" </dev/null >"$log" 2>&1 &
up=$!
stop() {
  if kill -TERM "$up" 2>/dev/null; then wait "$up" || true; fi
  rm -rf "$run_dir"
}
trap stop EXIT
deadline=$((SECONDS + 300))
while [ ! -s "$ready" ]; do
  if ! kill -0 "$up" 2>/dev/null || [ "$SECONDS" -ge "$deadline" ]; then
    echo "The daemons did not come up; their log:" >&2
    tail -n 60 "$log" >&2
    exit 1
  fi
  sleep 0.1
done
field() { /usr/bin/python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); print(d[sys.argv[2]] if len(sys.argv)<4 else d[sys.argv[2]][sys.argv[3]])' "$ready" "$@"; }
url=$(field url)
echo "Ready at $url (log: $log)"

step "One streaming chat request"
echo "> $question"
timings=$run_dir/timings.json
printf '%s\n' "$question" | "$smartgen" chat --url "$url" --max-tokens 120 --json-timings 2>"$timings" || {
  cat "$timings" >&2
  exit 1
}

step "Measured"
curl -sf "$(field metrics decoded)" >"$run_dir/metrics.txt"
/usr/bin/python3 - "$timings" "$run_dir/metrics.txt" <<'PY'
import json, re, sys
timings = json.loads(open(sys.argv[1]).read().strip().splitlines()[-1])
def show(name, key, unit, scale=1.0, digits=0):
    value = timings.get(key)
    print(f"{name:28} " + ("-" if value is None else f"{value * scale:.{digits}f} {unit}"))
show("time to first token", "ttft_seconds", "ms", 1000)
show("time to second token, gap", "ttst_gap_seconds", "ms", 1000)
show("time to second token, e2e", "ttst_e2e_seconds", "ms", 1000)
show("generation", "tokens_per_second", "tokens/s", 1, 1)
total = 0.0
for line in open(sys.argv[2]):
    if re.match(r'smartgen_transfer_bytes_total\{.*direction="received"', line):
        total += float(line.split()[-1])
print(f"{'KV bytes moved to decoded':28} {total / 1e6:.2f} MB")
PY

if [ "$keep" = 1 ]; then
  trap - EXIT
  disown "$up"
  cat <<EOF

The daemons go on running (process $up; stop them with: kill $up). Their log: $log
Talk to them:

  $smartgen chat --url $url
  curl $url/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Hello"}], "stream": true}'
EOF
fi
