#!/bin/bash
# Compares the channel's throughput on loopback with that of iperf3 with eight streams, in the same
# run. Usage: tests/bench/channel_vs_iperf3.sh [build folder, default build/release] [seconds]
# Fails if 64 MiB messages reach less than 85 % of iperf3.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build/release}
seconds=${2:-3}
command -v iperf3 > /dev/null || { echo "iperf3 is not installed: apt-get install iperf3" >&2; exit 1; }

result=$(mktemp)
iperf3 -s -1 -B 127.0.0.1 -p 25201 > /dev/null &
server=$!
trap 'kill "$server" 2> /dev/null || true; rm -f "$result"' EXIT
for _ in $(seq 50); do
  iperf3 -c 127.0.0.1 -p 25201 -P 8 -t "$seconds" -O 1 -J > "$result" && break
  sleep 0.1
done
channel=$("$build/bin/channel_bench" "$seconds")
echo "$channel"
python3 - "$result" "$channel" <<'PY'
import json, sys
iperf = json.load(open(sys.argv[1]))["end"]["sum_received"]["bits_per_second"] / 1e9
ours = json.loads(sys.argv[2])["gbit_per_s_64MiB"]
print(f"iperf3 -P 8: {iperf:.2f} Gbit/s, channel: {ours:.2f} Gbit/s, {ours / iperf:.0%}")
sys.exit(0 if ours >= 0.85 * iperf else 1)
PY
