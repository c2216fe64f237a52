#!/usr/bin/env bash
# Checks SmartGen on this machine's NVIDIA GPU: builds the cuda preset, then
#   - the kernels' tests and cuBLASLt on the device, the model's logits against the CPU's and reference ones,
#   - prefilld and decoded on the GPU over TCP (and NCCL), their tokens against a local run,
#   - speed: prefill and decode tokens/s and their share of what the device can, time to the second token.
#
#   tools/gpu_check.sh [--model M] [--json FILE] [--build-minutes N]
#
# Prints a line a step and writes one JSON object (build/gpu_check.json). Every step has a deadline; one that
# fails is reported and the next runs. The checks take under ten minutes, the first build as long as the machine
# needs (20 minutes at most, or --build-minutes; run again, it goes on). The default model must have been fetched
# (smartgen fetch-model smollm2-135m). Exit status: 0 all well, 1 something failed, 2 nothing can be checked here.
set -euo pipefail

# Of the first driver that runs CUDA 13, and of the first GPUs with bf16 products (Ampere).
least_driver=580
least_capability=8.0

cannot() { # what is wrong, what to do
  printf 'gpu_check.sh: %s\n' "$@" >&2
  exit 2
}

case "${1:-}" in
  -h | --help) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac

command -v nvidia-smi >/dev/null || cannot \
  "no GPU to check: nvidia-smi, which comes with NVIDIA's driver, is not in PATH." \
  "Run this on a machine with an NVIDIA GPU and driver $least_driver or later (in a container: with the GPU passed in)."
# CUDA then numbers GPUs as nvidia-smi does; those that it may see alone, from 0 on in their order.
export CUDA_DEVICE_ORDER=PCI_BUS_ID
all_of() { timeout 30 nvidia-smi "$@" --query-gpu=index,compute_cap,driver_version,name --format=csv,noheader 2>&1; }
gpus_seen() {
  if [ -z "${CUDA_VISIBLE_DEVICES+set}" ]; then all_of; return; fi
  local gpu number=0 line
  for gpu in ${CUDA_VISIBLE_DEVICES//,/ }; do
    line=$(all_of -i "$gpu") || { echo "$line"; return 1; }
    echo "$number,${line#*,}"
    number=$((number + 1))
  done
}
found=$(gpus_seen) || cannot \
  "no GPU to check: nvidia-smi fails: ${found%%$'\n'*}" \
  "Want a GPU that nvidia-smi lists: is the driver loaded, and the same as the one that nvidia-smi is of?"
fit=""
seen=""
while IFS=, read -r index capability driver name; do
  capability=${capability# } driver=${driver# } name=${name# }
  [[ $index =~ ^[0-9]+$ && $capability =~ ^[0-9]+\.[0-9]+$ && $driver =~ ^[0-9]+ ]] || continue
  seen+="${seen:+; }$index: $name, compute capability $capability, driver $driver"
  if ((${driver%%.*} < least_driver)); then
    cannot "driver $driver is too old for CUDA 13: want $least_driver or later." "Update the driver ($seen)."
  fi
  if ((${capability%%.*} >= ${least_capability%%.*})); then fit+="${fit:+ }$index:$capability"; fi
done <<<"$found"
[ -n "$seen" ] || cannot "no GPU to check: nvidia-smi lists none (it says: ${found%%$'\n'*})." \
  "Is a GPU in this machine, and visible here (containers: passed in)?"
[ -n "$fit" ] || cannot "no GPU that SmartGen runs on: want compute capability $least_capability (Ampere) or later." \
  "Found: $seen."
for program in python3 cmake ninja c++; do
  command -v "$program" >/dev/null || cannot "$program is not installed." "Run tools/install_deps.sh."
done
cd "$(dirname "$0")/.."
exec python3 tools/gpu_check.py --gpus "$fit" "$@"
