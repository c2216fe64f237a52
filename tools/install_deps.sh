#!/usr/bin/env bash
# Installs every Debian 12 and Python package that SmartGen needs, and nothing that is there already.
#
#   tools/install_deps.sh          what building and running needs
#   tools/install_deps.sh --dev    also what the tests and checks need (sanitizers, clang, pytest, ...)
#   tools/install_deps.sh --cuda   also nvcc, cuBLAS and NCCL from NVIDIA's Python wheels (1 GB, under build/),
#                                  for the cuda preset where no CUDA Toolkit 13 is installed
#
# Run as root, or as a user who may use sudo.
set -euo pipefail

build=(
  build-essential cmake ninja-build pkg-config ccache git ca-certificates curl unzip
  protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libgrpc-dev libgrpc++-dev libabsl-dev
  libyaml-cpp-dev prometheus-cpp-dev libgtest-dev libgmock-dev libbenchmark-dev libdnnl-dev
  libboost1.81-dev nlohmann-json3-dev libspdlog-dev libpcre2-dev libssl-dev libxxhash-dev libhwy-dev
  libutf8proc-dev pybind11-dev python3-dev python3-jinja2 python3-pip python3-venv
)
dev=(clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev iproute2 procps)

want=("${build[@]}")
want_dev=0
want_cuda=0
for arg in "$@"; do
  case "$arg" in
    --dev) want+=("${dev[@]}"); want_dev=1 ;;
    --cuda) want_cuda=1 ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "install_deps.sh: unknown argument \"$arg\" (know: --dev, --cuda)" >&2; exit 2 ;;
  esac
done

if [ ! -r /etc/os-release ] || ! grep -q '^ID.*=.*debian' /etc/os-release; then
  echo "install_deps.sh: this is not a Debian system; install the equivalents of: ${want[*]}" >&2
  exit 1
fi

missing=()
for package in "${want[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
      echo "install_deps.sh: run as root, or install sudo; missing: ${missing[*]}" >&2
      exit 1
    }
    sudo=(sudo)
  fi
  echo "Installing: ${missing[*]}"
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "${missing[@]}" >/dev/null
fi

# The tests' own Python packages live in a virtual environment under build/, never in the system.
if [ "$want_dev" = 1 ]; then
  root=$(cd "$(dirname "$0")/.." && pwd)
  venv="$root/build/venv"
  if [ ! -x "$venv/bin/pytest" ] || ! "$venv/bin/python" -c 'import openai, pytest' 2>/dev/null; then
    mkdir -p "$root/build"
    /usr/bin/python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check -r "$root/tests/requirements.txt"
  fi
fi

# CUDA: wheels in a virtual environment, and build/cuda-toolkit, which looks like a CUDA_HOME.
if [ "$want_cuda" = 1 ]; then
  root=$(cd "$(dirname "$0")/.." && pwd)
  venv="$root/build/cuda-venv"
  home="$root/build/cuda-toolkit"
  if [ ! -e "$home/lib64/libcublasLt.so" ] || ! "$home/bin/nvcc" --version >/dev/null; then
    mkdir -p "$root/build"
    /usr/bin/python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check \
      nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 \
      nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-nccl-cu13==2.28.9 \
      nvidia-cublas==13.1.0.3
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    # What the wheels lack: the unversioned names that linkers look for, lib64, NCCL among the rest.
    cuda="$site/nvidia/cu13"
    ln -sfn "$cuda" "$home"
    ln -sfn lib "$cuda/lib64"
    ln -sfn libcudart.so.13 "$cuda/lib/libcudart.so"
    ln -sfn libcublasLt.so.13 "$cuda/lib/libcublasLt.so"
    ln -sfn ../../nccl/include/nccl.h "$cuda/include/nccl.h"
    for name in libnccl.so libnccl.so.2; do ln -sfn ../../nccl/lib/libnccl.so.2 "$cuda/lib/$name"; done
    "$home/bin/nvcc" --version >/dev/null
  fi
  echo "CUDA: $home (CUDA_HOME for the cuda preset, which finds it by itself)"
fi
echo "All packages are installed."
