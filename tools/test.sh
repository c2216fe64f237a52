#!/usr/bin/env bash
# Builds and runs the tests.
#
#   tools/test.sh             checks, unit tests, tests with the default model, the daemons with real
#                             clients
#   tools/test.sh --quick     unit tests alone
#   tools/test.sh --all       also the two sanitizer builds and the fuzz targets (two more builds)
#   tools/test.sh --cuda      also compiles the cuda preset (with NVIDIA's wheels, 1 GB under build/)
#
# The closing line is ctest's, over all that was run.
set -euo pipefail
cd "$(dirname "$0")/.."

quick=0
sanitizers=0
cuda=0
for arg in "$@"; do
  case "$arg" in
    --quick) quick=1 ;;
    --all) sanitizers=1 ;;
    --cuda) cuda=1 ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "test.sh: unknown argument \"$arg\" (know: --quick, --all, --cuda)" >&2; exit 2 ;;
  esac
done

step() { printf '\n== %s (%s)\n' "$1" "$(date +%T)"; }

build() { # preset, then targets
  local preset=$1
  shift
  cmake --preset "$preset" >"build/configure-$preset.log" 2>&1 || {
    tail -n 40 "build/configure-$preset.log"
    return 1
  }
  cmake --build --preset "$preset" ${1:+--target "$@"} -- --quiet
}

mkdir -p build
step "packages"
if [ "$quick" = 1 ]; then tools/install_deps.sh; else tools/install_deps.sh --dev; fi

step "release build"
build release
if [ "$quick" = 1 ]; then
  step "quick tests"
  exec ctest --preset release -L quick -j 2 --no-tests=error
fi

step "default model"
build/release/bin/smartgen fetch-model smollm2-135m

if [ "$cuda" = 1 ]; then
  step "cuda preset"
  tools/install_deps.sh --cuda
  # The parts that differ from the release build, and the daemons that link them.
  build cuda smartgen_cuda_kernels prefilld decoded cuda_device_check cuda_model_check
fi

if [ "$sanitizers" = 1 ]; then
  for preset in asan tsan; do
    step "$preset build"
    build "$preset" sanitized_tests
    step "$preset tests"
    ctest --preset "$preset" -L sanitize --no-tests=error -j 2 --quiet --output-on-failure \
      --output-log "build/ctest-$preset.log" || { tail -n 80 "build/ctest-$preset.log"; exit 1; }
    tail -n 4 "build/ctest-$preset.log"
  done
  step "fuzz targets"
  build fuzz fuzz_targets
  tools/fuzz.sh "${FUZZ_SECONDS:-10}"
fi

step "all tests of the release build"
ctest --preset release -j 1 --no-tests=error
