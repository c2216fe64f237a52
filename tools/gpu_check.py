"""The steps of tools/gpu_check.sh, which makes sure first that there is a GPU to check."""

import argparse
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BIN = os.path.join(ROOT, "build", "cuda", "bin")
LOGS = os.path.join(ROOT, "build", "gpu_check")
TARGETS = ["smartgen", "prefilld", "decoded", "cuda_device_check", "cuda_model_check"]

# Dense bf16 products with f32 sums, operations/s, and memory bandwidth, bytes/s: NVIDIA's data sheets. The first
# name that the device's contains counts.
PEAKS = [
    ("B200", 2250e12, 8000e9),
    ("H200", 989.4e12, 4800e9),
    ("H100 PCIe", 756e12, 2000e9),
    ("H100 NVL", 835e12, 3900e9),
    ("H100", 989.4e12, 3350e9),
    ("A100-SXM4-80GB", 312e12, 2039e9),
    ("A100 80GB PCIe", 312e12, 1935e9),
    ("A100", 312e12, 1555e9),
    ("L40S", 362e12, 864e9),
    ("L4", 121e12, 300e9),
    ("A10", 125e12, 600e9),
    ("RTX 4090", 165.2e12, 1008e9),
    ("RTX 3090", 71e12, 936e9),
]


class Wrong(Exception):
    """Why a step failed though its command ended well."""


def peaks_of(device):
    """What the device can at best, and where that is known from."""
    for name, flops, bandwidth in PEAKS:
        if re.search(rf"\b{re.escape(name)}\b", device["name"]):
            return {"flops": flops, "bytes_per_second": bandwidth, "source": "data sheet"}
    bus = device["bus_bytes_per_second"]
    return {
        "flops": device["product_bf16_flops"],
        "bytes_per_second": bus if bus > 0 else device["copy_bytes_per_second"],
        "source": "measured products, " + ("the driver's memory clock" if bus > 0 else "measured copies"),
    }


def speed_rows(bench, peaks):
    """Tokens/s with shares: of operations for prefill (products with weights; attention not counted), of bandwidth
    for decode (each weight read once a step; KV not counted)."""
    weights = bench["layer_weights"] + bench["output_weights"]
    weight_bytes = 4 if bench["compute"] == "f32" else 2
    rows = []
    for row in bench["rows"]:
        prefill, decode = row["prefill_tokens_per_second"], row["decode_tokens_per_second"]
        rows.append({
            "prompt_tokens": row["prompt_tokens"],
            "prefill_tokens_per_second": prefill,
            "prefill_share_of_flops": prefill * 2 * bench["layer_weights"] / peaks["flops"],
            "decode_tokens_per_second": decode,
            "decode_share_of_bandwidth": decode * weights * weight_bytes / peaks["bytes_per_second"],
        })
    return rows


def pair_cells(bench, must_be_equal):
    """What a run of bench ttst says of each mode, and what is wrong: failed requests, tokens that should not differ."""
    cells = []
    wrong = []
    for cell in bench["cells"]:
        summary = cell["summary"]
        name = cell["case"]
        median = lambda key: (summary.get(key) or {}).get("median")  # noqa: E731
        cells.append({
            "mode": name,
            "prompt_tokens": cell["prompt_tokens"],
            "link_shaped": cell["link"]["shaped"],
            "link_bytes_per_second": cell["link"].get("bytes_per_second"),
            "ratio": cell["link"].get("ratio"),
            "ttft_seconds": median("ttft_seconds"),
            "ttst_gap_seconds": median("ttst_gap_seconds"),
            "ttst_e2e_seconds": median("ttst_e2e_seconds"),
            "tbt_mean_seconds": summary.get("tbt_mean_seconds"),
            "tokens_equal": summary.get("tokens_equal"),
        })
        if summary["failed"]:
            wrong.append(f"{name}: {summary['failed']} of {summary['requests']} requests failed")
        elif name in must_be_equal and summary.get("tokens_equal") is not True:
            wrong.append(f"{name}: tokens differ from a local run's")
    if not cells:
        wrong.append("nothing was measured")
    return cells, "; ".join(wrong)


def stop(process):
    """Ends a step and all that it started."""
    for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            pass


def fresh(folder, name):
    """The path of a file that a step is to write; none of an earlier run is taken for it."""
    path = os.path.join(folder, name)
    if os.path.exists(path):
        os.remove(path)
    return path


class Report:
    """Runs steps and remembers how they went; facts are what they found out."""

    def __init__(self, folder, out=sys.stdout):
        self.folder = folder
        self.out = out
        self.steps = []
        self.facts = {}

    def say(self, text):
        print(text, file=self.out, flush=True)

    def failed(self):
        return any(step["status"] == "failed" for step in self.steps)

    def add(self, name, status, seconds, why="", command=None):
        step = {"name": name, "status": status, "seconds": round(seconds, 1)}
        if why:
            step["why"] = why
        if command:
            step["command"] = " ".join(command)
        self.steps.append(step)
        self.say(f"{status:8} {name} ({seconds:.0f} s)" + (f": {why}" if why else ""))

    def skip(self, name, why):
        self.add(name, "skipped", 0, why)

    def run(self, name, command, deadline, then=None, env=None, experimental=False):
        """Runs `command`; `then` gets what it printed and may return facts, or raise Wrong. True if all
        went well. What fails experimentally is reported, but fails nothing."""
        self.say(f"...      {name} (at most {deadline:.0f} s)")
        log = os.path.join(self.folder, re.sub(r"\W+", "_", name) + ".log")
        begin = time.monotonic()
        why = ""
        text = ""
        try:
            with open(log, "w", encoding="utf-8") as errors, tempfile.TemporaryFile("w+") as output:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, cwd=ROOT,
                    start_new_session=True, env={**os.environ, **(env or {})})
                try:
                    code = process.wait(deadline)
                    if code != 0:
                        why = f"exit status {code}"
                except subprocess.TimeoutExpired:
                    stop(process)
                    why = f"not done after {deadline:.0f} s"
                except BaseException:
                    stop(process)
                    raise
                output.seek(0)
                text = output.read()
        except OSError as error:
            why = f"{command[0]}: {error.strerror}"
        if then:
            try:
                self.facts.update(then(text) or {})
            except Wrong as error:
                why = f"{why}: {error}" if why else str(error)
            except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
                why = why or f"cannot read its output: {error!r}"
        if why:
            with open(log, "a", encoding="utf-8") as file:
                file.write(text)
            with open(log, encoding="utf-8", errors="replace") as file:
                last = [line.strip() for line in file.read().splitlines() if line.strip()][-3:]
            why += "".join(f" | {line[:300]}" for line in last) + f" (log: {log})"
        status = "passed" if not why else "failed, experimental" if experimental else "failed"
        self.add(name, status, time.monotonic() - begin, why, command)
        return not why


def find_toolkit():
    """A folder with nvcc and what the cuda preset needs beside it, or None."""
    for home in (os.environ.get("CUDA_HOME"), os.path.join(ROOT, "build", "cuda-toolkit"), "/usr/local/cuda"):
        if not home or not os.access(os.path.join(home, "bin", "nvcc"), os.X_OK):
            continue
        include = [os.path.join(home, "include"), "/usr/include",
                   os.path.join(os.environ.get("NCCL_HOME", home), "include")]
        if all(any(os.path.exists(os.path.join(folder, header)) for folder in include)
               for header in ("cublasLt.h", "nccl.h")):
            return home
    return None


def nccl_version():
    """(2, 30) of the build, None where it cannot be told."""
    try:
        with open(os.path.join(ROOT, "build", "cuda", "CMakeCache.txt"), encoding="utf-8") as file:
            folder = re.search(r"SMARTGEN_NCCL_INCLUDE_DIR:PATH=(.*)", file.read()).group(1)
        with open(os.path.join(folder, "nccl.h"), encoding="utf-8") as file:
            text = file.read()
        return tuple(int(re.search(rf"#define NCCL_{part}\s+(\d+)", text).group(1))
                     for part in ("MAJOR", "MINOR"))
    except (OSError, AttributeError):
        return None


def build(report, gpus, minutes):
    if find_toolkit() is None and not report.run("CUDA toolkit", ["tools/install_deps.sh", "--cuda"], 900):
        return False
    architectures = ";".join(sorted({capability.replace(".", "") for _, capability in gpus}))
    return report.run(
        "configure", ["cmake", "--preset", "cuda", f"-DSMARTGEN_CUDA_ARCHITECTURES={architectures}"], 120,
    ) and report.run("build", ["cmake", "--build", "--preset", "cuda", "--target", *TARGETS], minutes * 60)


def kernel_tests(report, path):
    def read(_):
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        bad = [f"{suite['name']}.{test['name']}" for suite in found["testsuites"]
               for test in suite["testsuite"] if test.get("failures")]
        report.facts[os.path.basename(path).split(".")[0]] = {"tests": found["tests"], "failed": bad}
        if found["tests"] == 0:
            raise Wrong("no test was run")
        if bad:
            raise Wrong(f"{len(bad)} of {found['tests']} tests failed: {', '.join(bad[:5])}")
    return read


def check_kernels(report):
    for name, program, deadline in (("kernels and cuBLASLt on the device", "cuda_device_check", 110),
                                    ("logits against the CPU and the reference", "cuda_model_check", 80)):
        path = fresh(report.folder, program + ".json")
        report.run(name, [os.path.join(BIN, program), "--gtest_brief=1", f"--gtest_output=json:{path}"],
                   deadline, kernel_tests(report, path))


def check_generation(report, model):
    """The same tokens from both executors."""
    ids = {}
    for executor in ("cpu", "cuda"):
        def keep(text, executor=executor):
            ids[executor] = json.loads(text)["generated_ids"]
            if executor == "cuda" and "cpu" in ids and ids["cuda"] != ids["cpu"]:
                raise Wrong(f"tokens {ids['cuda']}, of the CPU {ids['cpu']}")
        report.run(f"generation on {executor}",
                   [os.path.join(BIN, "smartgen"), "run", "--model", model, "--executor", executor, "--compute", "f32",
                    "--prompt", "The river rises in the hills behind the town, where", "--max-tokens", "24",
                    "--ignore-eos", "--json"], 35, keep)


def check_speed(report, model):
    def device(text):
        found = json.loads(text.strip().splitlines()[-1])
        return {"device": found, "peaks": peaks_of(found)}

    def speed(text):
        rows = speed_rows(json.loads(text.strip().splitlines()[-1]), report.facts["peaks"])
        for row in rows:
            report.say(
                f"         prompt of {row['prompt_tokens']}: prefill {row['prefill_tokens_per_second']:,.0f} tokens/s"
                f" ({row['prefill_share_of_flops']:.1%} of peak operations), decode"
                f" {row['decode_tokens_per_second']:,.1f} tokens/s"
                f" ({row['decode_share_of_bandwidth']:.1%} of memory bandwidth)")
        return {"speed": rows}

    if report.run("what the device can", [os.path.join(BIN, "cuda_device_check"), "--measure"], 30, device):
        report.run("prefill and decode speed",
                   [os.path.join(BIN, "smartgen"), "bench", "model", "--model", model, "--executor", "cuda",
                    "--compute", "bf16", "--lengths", "512,2048", "--decode-tokens", "64", "--json"], 50, speed)
    else:
        report.skip("prefill and decode speed", "shares of what is not known")


def pair(report, name, key, model, flags, overrides, must_be_equal, deadline, env=None, experimental=False):
    """One run of bench ttst, with daemons of its own on the GPU."""
    path = fresh(report.folder, key + ".json")

    def read(_):
        with open(path, encoding="utf-8") as file:
            cells, wrong = pair_cells(json.load(file), must_be_equal)
        report.facts[key] = cells
        for cell in cells:
            numbers = [f"{label} {cell[field] * 1000:,.1f} ms" for label, field in
                       (("token 1", "ttft_seconds"), ("token 2", "ttst_e2e_seconds"),
                        ("between tokens", "tbt_mean_seconds")) if cell[field] is not None]
            ratio = f", R {cell['ratio']:g}" if cell["link_shaped"] and cell["ratio"] else ""
            report.say(f"         {cell['mode']}{ratio}: {', '.join(numbers)}")
        if wrong:
            raise Wrong(wrong)

    report.run(name,
               [os.path.join(BIN, "smartgen"), "bench", "ttst", "--model", model, "--json", path,
                "--calibration-runs", "2", "--start-timeout", "40s", *flags, "--", "--executor=cuda",
                "--kv_bytes=1GiB", *overrides], deadline, read, env, experimental)


def check_pair(report, model, gpus, memory_bytes):
    # Both daemons on one GPU share its memory.
    one = [f"--cuda.memory={memory_bytes * 2 // 5}", f"--cuda.device={gpus[0][0]}"]
    exact = ["--network", "loopback", "--modes", "full,exact,smartgen", "--ratios", "2", "--lengths", "512",
             "--prompts", "2", "--tokens", "16", "--compute", "f32"]
    # f32, so that another order of sums decides no token.
    pair(report, "prefilld and decoded over TCP", "pair_tcp", model, exact, one, {"full", "exact"}, 60)

    name = "prefilld and decoded over NCCL"
    nccl = ["--channel=nccl"]
    if len(gpus) > 1:
        a, b = gpus[0][0], gpus[1][0]
        two = [f"--prefilld.cuda.device={a}", f"--prefilld.nccl.device={a}", f"--decoded.cuda.device={b}",
               f"--decoded.nccl.device={b}"]
        pair(report, name, "pair_nccl", model, exact, two + nccl, {"full", "exact"}, 60)
    elif (nccl_version() or (0, 0)) >= (2, 30):
        pair(report, name + " on one GPU", "pair_nccl", model, exact, one + nccl, {"full", "exact"}, 60,
             {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}, experimental=True)
    else:
        report.skip(name, "one GPU: two ranks on it want NCCL 2.30 or later")

    pair(report, "time to the second token", "ttst", model,
         ["--network", "auto", "--ratios", "2,4.7", "--lengths", "2048", "--prompts", "2", "--tokens", "32",
          "--compute", "bf16"], one, set(), 110)


def memory_of(report):
    """Of the device, for two daemons to share; a small device's where it could not be asked."""
    return int(report.facts.get("device", {}).get("memory_bytes", 8 << 30))


def commit():
    found = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def write(report, path, gpus, begin):
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "commit": commit(),
            "gpus": [{"index": index, "compute_capability": capability} for index, capability in gpus],
            "passed": not report.failed(),
            "seconds": round(time.monotonic() - begin, 1),
            "steps": report.steps,
            **report.facts,
        }, file, indent=1)
        file.write("\n")


def parse(argv):
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description="Checks SmartGen on this machine's GPU.")
    parser.add_argument("--gpus", required=True, help=argparse.SUPPRESS)  # "0:9.0 1:9.0"
    parser.add_argument("--model", default="smollm2-135m", help="a known name, GGUF file or safetensors folder")
    parser.add_argument("--json", default=os.path.join(ROOT, "build", "gpu_check.json"), help="file to write")
    parser.add_argument("--build-minutes", type=float, default=20, help="the build's deadline")
    options = parser.parse_args(argv)
    options.gpus = [tuple(gpu.split(":")) for gpu in options.gpus.split()]
    return options


def main(argv):
    options = parse(argv)
    begin = time.monotonic()
    os.makedirs(LOGS, exist_ok=True)
    report = Report(LOGS)
    if build(report, options.gpus, options.build_minutes):
        check_kernels(report)
        check_generation(report, options.model)
        check_speed(report, options.model)
        check_pair(report, options.model, options.gpus, memory_of(report))
    else:
        report.add("all checks", "failed", 0, "there is nothing to run")
    write(report, options.json, options.gpus, begin)
    bad = [step["name"] for step in report.steps if step["status"] == "failed"]
    report.say(f"\n{'FAILED: ' + ', '.join(bad) if bad else 'All well.'} Written: {options.json}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
