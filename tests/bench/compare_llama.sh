#!/usr/bin/env bash
# Compares SmartGen's CPU executor with llama.cpp: the same weights, the same threads, in turns.
#
#   tests/bench/compare_llama.sh VENV [arguments of compare_llama.py]
#
# Set-up: a virtual environment with llama.cpp's Python bindings and the gguf package, built for this
# machine:
#
#   python3 -m venv VENV
#   VENV/bin/pip install llama-cpp-python gguf numpy
#
# and a release build of SmartGen (cmake --build --preset release --target smartgen). Run it on an
# otherwise idle machine; `compare_llama.sh VENV --help` shows the arguments. It prints a Markdown
# table and, with --json FILE, writes every measurement.
set -euo pipefail
if [ $# -lt 1 ] || [ "$1" = -h ] || [ "$1" = --help ]; then
  sed -n '2,15s/^# \{0,1\}//p' "$0"
  exit $(($# < 1 ? 2 : 0))
fi
python=$1/bin/python
shift
"$python" -c 'import gguf, llama_cpp, numpy' || {
  echo "compare_llama.sh: $python lacks packages; set it up as the head of this file says" >&2
  exit 1
}
exec "$python" "$(dirname "$0")/compare_llama.py" "$@"
