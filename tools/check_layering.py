#!/usr/bin/env python3
"""Checks that a folder includes only what stands below it.

Reads the includes of every .h, .cc, .cu and .cuh of the product (tests may include anything) and prints
`file:line: what is wrong` for each that breaks a rule; exit status 1 if there are any. The rules are the
two tables below: which folder may include which, and which libraries stay behind which folders.

Usage: tools/check_layering.py [ROOT]
"""

import os
import re
import sys

_EVERYWHERE = {"common/base", "common/config", "common/metrics"}
_COMMON = {
    "common/base": set(),
    "common/config": {"common/base"},
    "common/metrics": {"common/base"},
    "common/trace": {"common/base"},
    "common/device": {"common/base"},
    "common/model": _EVERYWHERE,
    "common/kv": _EVERYWHERE,
    # Moves bytes and knows nothing of KV.
    "common/channel": _EVERYWHERE | {"common/device"},
    "common/selector": _EVERYWHERE | {"common/kv"},
    "common/sampling": {"common/base"},
    "common/tokenizer": _EVERYWHERE | {"common/model"},
    # Knows nothing of models beyond a KV layout.
    "common/transfer": _EVERYWHERE | {"common/channel", "common/kv", "common/trace"},
    # Knows nothing of the network.
    "common/executor": _EVERYWHERE | {"common/device", "common/kv", "common/model", "common/selector"},
    "common/chat": _EVERYWHERE | {"common/model", "common/tokenizer"},
}
_BELOW_RPC = set(_COMMON)
_TOP = ["prefill_server", "decode_server", "gateway", "tools"]

# Folder -> folders that it may include besides itself.
ALLOWED = {
    **_COMMON,
    "common/rpc": _BELOW_RPC | {"proto"},
    **{top: _BELOW_RPC | {"common/rpc", "proto"} for top in _TOP},
}

# (what, pattern of the include, path prefixes where it is allowed)
LIBRARIES = [
    (
        "gRPC",
        re.compile(r"^(grpc|grpcpp|grpc\+\+)/|\.grpc\.pb\.h$"),
        ["common/rpc/"] + [top + "/" for top in _TOP],
    ),
    (
        # The profile's file format is protobuf; messages without services.
        "protobuf",
        re.compile(r"^google/protobuf/|\.pb\.h$"),
        ["common/rpc/", "common/transfer/*.cc"] + [top + "/" for top in _TOP],
    ),
    ("Boost.Beast", re.compile(r"^boost/beast"), ["gateway/", "tools/"]),
    (
        "CUDA and NCCL",
        re.compile(r"^(cuda|cublas|cub/|nccl|nvtx|flashinfer/|driver_types\.h)"),
        ["common/device/*.cc", "common/executor/cuda/", "common/channel/nccl/*.cc"],
    ),
    ("prometheus-cpp", re.compile(r"^prometheus/"), ["common/metrics/*.cc"]),
]

_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
_SOURCES = (".h", ".cc", ".cu", ".cuh")


def folder_of(path):
    """The layer that a path (or an include) belongs to, None for system and library headers."""
    parts = path.split("/")
    if parts[0] == "common" and len(parts) > 2:
        return "/".join(parts[:2])
    if len(parts) > 1 and parts[0] in _TOP + ["proto", "tests"]:
        return parts[0]
    return None


def library_allowed(path, places):
    for place in places:
        if place.endswith("*.cc"):
            if path.startswith(place[: -len("*.cc")]) and path.endswith(".cc"):
                return True
        elif path.startswith(place):
            return True
    return False


def check_include(path, include):
    """What is wrong with `include` in the file `path`, or None."""
    folder = folder_of(path)
    if folder not in ALLOWED:
        return f"{folder or path} is not in the layering table of tools/check_layering.py"
    target = folder_of(include)
    if target is not None and target != folder and target not in ALLOWED[folder]:
        known = ", ".join(sorted(ALLOWED[folder])) or "nothing"
        return f'{folder} includes "{include}" of {target}; it may include {known}'
    for what, pattern, places in LIBRARIES:
        if pattern.search(include) and not library_allowed(path, places):
            return f"includes <{include}>; {what} may be used in {', '.join(places)} only"
    return None


def sources(root):
    for top in ["common"] + _TOP:
        for directory, folders, names in os.walk(os.path.join(root, top)):
            folders.sort()
            for name in sorted(names):
                if name.endswith(_SOURCES):
                    yield os.path.relpath(os.path.join(directory, name), root).replace(os.sep, "/")


def check_tree(root):
    """(number of files read, list of complaints)"""
    count = 0
    complaints = []
    for path in sources(root):
        count += 1
        with open(os.path.join(root, path), encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                match = _INCLUDE.match(line)
                wrong = check_include(path, match.group(1)) if match else None
                if wrong:
                    complaints.append(f"{path}:{number}: {wrong}")
    return count, complaints


def main(argv):
    root = argv[1] if len(argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    count, complaints = check_tree(root)
    if count == 0:
        print(f"{root}: no sources found; want the repository's root", file=sys.stderr)
        return 1
    for complaint in complaints:
        print(complaint)
    print(f"layering: {count} files, {len(complaints)} violations")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
