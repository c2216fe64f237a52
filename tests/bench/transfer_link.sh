#!/bin/bash
# Throughput of a KV transfer and the delay of small answers beside it, over a shaped link: two network
# namespaces joined by a veth pair with a token bucket filter on both sides. Needs root.
# Usage: tests/bench/transfer_link.sh [build folder, default build/release] [seconds, default 10]
#        [rates, default "16mbit 1gbit"]
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build/release}
seconds=${2:-10}
rates=${3:-16mbit 1gbit}
[ "$(id -u)" = 0 ] || { echo "network namespaces need root" >&2; exit 1; }

a=sgbench-a-$$
b=sgbench-b-$$
trap 'ip netns del "$a" 2> /dev/null || true; ip netns del "$b" 2> /dev/null || true' EXIT
ip netns add "$a"
ip netns add "$b"
ip -n "$a" link add veth0 type veth peer name veth0 netns "$b"
ip -n "$a" addr add 10.251.0.1/24 dev veth0
ip -n "$b" addr add 10.251.0.2/24 dev veth0
for ns in "$a" "$b"; do
  ip -n "$ns" link set lo up
  ip -n "$ns" link set veth0 up
done
for rate in $rates; do
  for ns in "$a" "$b"; do
    ip netns exec "$ns" tc qdisc del dev veth0 root 2> /dev/null || true
    # A queue of 1 s, so that what stands in it is seen.
    ip netns exec "$ns" tc qdisc add dev veth0 root handle 1: tbf rate "$rate" burst 64kb latency 1s
  done
  ip netns exec "$a" "$build/bin/transfer_bench" send 7190 "$seconds" 2> /tmp/sgbench.$$ &
  sender=$!
  sleep 0.3
  echo "$rate: $(ip netns exec "$b" "$build/bin/transfer_bench" receive 10.251.0.1 7190 "$seconds")"
  wait "$sender" || true
  echo "$rate: $(cat /tmp/sgbench.$$)"
  rm -f /tmp/sgbench.$$
done
