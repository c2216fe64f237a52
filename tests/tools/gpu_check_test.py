"""Tests of tools/gpu_check.sh and gpu_check.py without a GPU: what they say where nothing can be checked, and how
steps, deadlines and figures are reported."""

import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_SCRIPT = os.path.join(_ROOT, "tools", "gpu_check.sh")
_SPEC = importlib.util.spec_from_file_location("gpu_check", os.path.join(_ROOT, "tools", "gpu_check.py"))
gpu_check = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(gpu_check)


class PreflightTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        for tool in ("bash", "timeout", "sed", "cat", "dirname"):
            os.symlink(shutil.which(tool), os.path.join(self.folder.name, tool))

    def put(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!" + shutil.which("bash") + "\n" + text)
        os.chmod(path, 0o755)

    def run_script(self, *arguments, **environment):
        return subprocess.run([shutil.which("bash"), _SCRIPT, *arguments], capture_output=True, text=True,
                              timeout=60, check=False,
                              env={"PATH": self.folder.name, **environment})

    def assert_cannot(self, *texts):
        begin = time.monotonic()
        run = self.run_script()
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertLess(time.monotonic() - begin, 10)
        for text in texts:
            self.assertIn(text, run.stderr)

    def test_without_a_driver_it_ends_at_once_and_says_what_it_looked_for(self):
        self.assert_cannot("nvidia-smi", "not in PATH", "driver 580 or later")

    def test_a_driver_that_fails_is_quoted(self):
        self.put("nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
        self.assert_cannot("Driver/library version mismatch")

    def test_no_gpu_in_the_machine(self):
        self.put("nvidia-smi", "echo 'No devices were found'")
        self.assert_cannot("nvidia-smi lists none", "No devices were found")

    def test_an_old_driver(self):
        self.put("nvidia-smi", "echo '0, 9.0, 535.104.05, NVIDIA H100 80GB HBM3'")
        self.assert_cannot("driver 535.104.05 is too old", "580")

    def test_an_old_gpu(self):
        self.put("nvidia-smi", "echo '0, 7.5, 580.65.06, Tesla T4'")
        self.assert_cannot("compute capability 8.0", "Tesla T4, compute capability 7.5")

    def test_a_missing_program_is_named_with_the_way_to_it(self):
        self.put("nvidia-smi", "echo '0, 9.0, 580.65.06, NVIDIA H200'")
        self.assert_cannot("python3 is not installed", "tools/install_deps.sh")

    def test_gpus_that_fit_are_handed_on_and_others_left_out(self):
        self.put("nvidia-smi", "printf '0, 7.5, 580.65.06, Tesla T4\\n1, 9.0, 580.65.06, NVIDIA H200\\n'")
        self.put("python3", 'echo "$*"')
        for program in ("cmake", "ninja", "c++"):
            self.put(program, "")
        run = self.run_script("--model", "m.gguf")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(run.stdout.strip(), "tools/gpu_check.py --gpus 1:9.0 --model m.gguf")

    def test_gpus_that_may_be_seen_alone_are_numbered_as_cuda_does(self):
        self.put("nvidia-smi", '[ "$1" = -i ] || exit 1\n'
                               'case "$2" in 2) capability=8.0 ;; 5) capability=9.0 ;; *) exit 1 ;; esac\n'
                               'echo "$2, $capability, 580.65.06, a GPU"')
        self.put("python3", 'echo "$CUDA_DEVICE_ORDER $*"')
        for program in ("cmake", "ninja", "c++"):
            self.put(program, "")
        run = self.run_script(CUDA_VISIBLE_DEVICES="5,2")
        self.assertEqual(run.stdout.strip(), "PCI_BUS_ID tools/gpu_check.py --gpus 0:9.0 1:8.0", run.stderr)
        self.assertIn("nvidia-smi lists none", self.run_script(CUDA_VISIBLE_DEVICES="").stderr)

    def test_help_is_the_scripts_head(self):
        run = self.run_script("--help")
        self.assertEqual(run.returncode, 0)
        self.assertIn("tools/gpu_check.sh [--model M]", run.stdout)


class ReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.out = io.StringIO()
        self.report = gpu_check.Report(self.folder, self.out)

    def python(self, text):
        return [sys.executable, "-c", text]

    def test_a_step_that_fails_is_reported_and_the_next_one_runs(self):
        self.assertFalse(self.report.run("first", self.python("import sys; sys.exit('it broke')"), 30))
        self.assertTrue(self.report.run("second", self.python("print(7)"), 30, lambda text: {"n": int(text)}))
        first, second = self.report.steps
        self.assertEqual(first["status"], "failed")
        self.assertIn("exit status 1", first["why"])
        self.assertIn("it broke", first["why"])
        self.assertEqual(second["status"], "passed")
        self.assertEqual(self.report.facts, {"n": 7})
        self.assertTrue(self.report.failed())

    def test_a_step_that_hangs_is_ended_with_what_it_started(self):
        marker = os.path.join(self.folder, "late")
        child = f"import time; time.sleep(4); open({marker!r}, 'w')"
        begin = time.monotonic()
        self.assertFalse(self.report.run("hangs", self.python(
            f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"), 0.5))
        self.assertLess(time.monotonic() - begin, 4)
        self.assertIn("not done after", self.report.steps[0]["why"])
        time.sleep(max(0, begin + 5 - time.monotonic()))
        self.assertFalse(os.path.exists(marker), "the child went on")

    def test_a_program_that_is_not_there(self):
        self.assertFalse(self.report.run("absent", [os.path.join(self.folder, "nothing")], 5))
        self.assertIn("No such file", self.report.steps[0]["why"])

    def test_output_that_cannot_be_read_fails_the_step(self):
        self.assertFalse(self.report.run("garbage", self.python("print('{')"), 30, json.loads))
        self.assertIn("cannot read its output", self.report.steps[0]["why"])

    def test_what_fails_experimentally_fails_nothing(self):
        self.assertFalse(self.report.run("maybe", self.python("raise SystemExit(3)"), 30, experimental=True))
        self.assertIn("experimental", self.report.steps[0]["status"])
        self.assertFalse(self.report.failed())


class FiguresTest(unittest.TestCase):
    DEVICE = {"name": "NVIDIA Unheard 1", "bus_bytes_per_second": 2e12, "copy_bytes_per_second": 1e12,
              "product_bf16_flops": 5e14}

    def test_peaks_of_known_devices_are_their_data_sheets(self):
        self.assertEqual(gpu_check.peaks_of({**self.DEVICE, "name": "NVIDIA H200"})["bytes_per_second"], 4800e9)
        self.assertEqual(gpu_check.peaks_of({**self.DEVICE, "name": "NVIDIA L40S"})["flops"], 362e12)
        # Not an A10.
        self.assertEqual(gpu_check.peaks_of({**self.DEVICE, "name": "NVIDIA A100-PCIE-40GB"})["flops"], 312e12)
        self.assertEqual(gpu_check.peaks_of({**self.DEVICE, "name": "NVIDIA H100 PCIe"})["flops"], 756e12)

    def test_peaks_of_others_are_measured(self):
        peaks = gpu_check.peaks_of(self.DEVICE)
        self.assertEqual((peaks["flops"], peaks["bytes_per_second"]), (5e14, 2e12))
        peaks = gpu_check.peaks_of({**self.DEVICE, "bus_bytes_per_second": 0})
        self.assertEqual(peaks["bytes_per_second"], 1e12)
        self.assertIn("measured copies", peaks["source"])

    def test_shares_are_of_operations_and_of_bandwidth(self):
        bench = {"compute": "bf16", "layer_weights": 100_000_000, "output_weights": 25_000_000,
                 "rows": [{"prompt_tokens": 512, "prefill_tokens_per_second": 1e6, "decode_tokens_per_second": 1000}]}
        row, = gpu_check.speed_rows(bench, {"flops": 1e15, "bytes_per_second": 1e12})
        self.assertAlmostEqual(row["prefill_share_of_flops"], 0.2)  # 1e6 * 2 * 1e8 of 1e15
        self.assertAlmostEqual(row["decode_share_of_bandwidth"], 0.25)  # 1000 * 1.25e8 * 2 of 1e12

    @staticmethod
    def cell(case, failed=0, equal=True):
        return {"case": case, "prompt_tokens": 512, "link": {"shaped": False},
                "summary": {"requests": 2, "failed": failed, "tokens_equal": equal,
                            "ttft_seconds": {"median": 0.5}, "ttst_e2e_seconds": {"median": 0.75}}}

    def test_a_pairs_run_gives_times_of_each_mode(self):
        (full, chosen), wrong = gpu_check.pair_cells(
            {"cells": [self.cell("full"), self.cell("smartgen", equal=False)]}, {"full"})
        self.assertEqual(wrong, "")
        self.assertEqual((full["ttft_seconds"], full["ttst_e2e_seconds"]), (0.5, 0.75))
        self.assertIs(chosen["tokens_equal"], False)  # a selection may

    def test_other_tokens_and_failed_requests_are_wrong(self):
        for cells, why in (([self.cell("full", equal=False)], "full: tokens differ"),
                           ([self.cell("exact", failed=1)], "exact: 1 of 2 requests failed"),
                           ([], "nothing was measured")):
            self.assertIn(why, gpu_check.pair_cells({"cells": cells}, {"full", "exact"})[1])


# What each program prints on a machine where all is well.
_PROGRAMS = {
    "cuda_device_check": """
if [ "$1" = --measure ]; then
  echo '{"name": "NVIDIA H200", "memory_bytes": 150000000000, "bus_bytes_per_second": 0,' \\
    '"copy_bytes_per_second": 4e12, "product_bf16_flops": 6e14}'
else
  echo '{"tests": 3, "testsuites": []}' >"${2#--gtest_output=json:}"
fi
""",
    "cuda_model_check": """
echo '{"tests": 1, "testsuites": [{"name": "Golden", "testsuite": [{"name": "Logits", "failures": [{}]}]}]}' \\
  >"${2#--gtest_output=json:}"
exit 1
""",
    "smartgen": """
case "$1 $2" in
  "run "*) echo '{"generated_ids": [1, 2, 3]}' ;;
  "bench model") echo '{"compute": "bf16", "layer_weights": 1000000, "output_weights": 1000, "rows": [' \\
    '{"prompt_tokens": 512, "prefill_tokens_per_second": 1000.0, "decode_tokens_per_second": 10.0}]}' ;;
  "bench ttst")
    while [ "$1" != --json ]; do shift; done
    echo '{"cells": [{"case": "full", "prompt_tokens": 512, "link": {"shaped": false}, "summary":' \\
      '{"requests": 1, "failed": 0, "tokens_equal": true, "ttft_seconds": {"median": 0.1}}}]}' >"$2" ;;
esac
""",
}


class WholeTest(unittest.TestCase):
    """The steps from the first to the report, on programs that only pretend."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name, text in _PROGRAMS.items():
            path = os.path.join(self.folder, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write("#!" + shutil.which("bash") + "\n" + text)
            os.chmod(path, 0o755)
        for name, value in (("BIN", self.folder), ("LOGS", os.path.join(self.folder, "logs")), ("build", None)):
            self.addCleanup(setattr, gpu_check, name, getattr(gpu_check, name))
            setattr(gpu_check, name, value)

    def run_main(self, built):
        gpu_check.build = lambda report, gpus, minutes: built
        path = os.path.join(self.folder, "new", "report.json")
        out, sys.stdout = sys.stdout, io.StringIO()
        try:
            code = gpu_check.main(["--gpus", "0:9.0", "--json", path])
        finally:
            sys.stdout = out
        with open(path, encoding="utf-8") as file:
            return code, json.load(file)

    def test_one_failure_leaves_the_other_steps_and_the_report(self):
        code, report = self.run_main(built=True)
        status = {step["name"]: step["status"] for step in report["steps"]}
        self.assertEqual(code, 1)
        self.assertIs(report["passed"], False)
        self.assertEqual([name for name, was in status.items() if was == "failed"],
                         ["logits against the CPU and the reference"])
        self.assertEqual(report["cuda_model_check"]["failed"], ["Golden.Logits"])
        self.assertEqual(report["cuda_device_check"], {"tests": 3, "failed": []})
        self.assertEqual(status["time to the second token"], "passed")
        self.assertEqual(status["prefilld and decoded over NCCL"], "skipped")
        self.assertEqual(report["speed"][0]["prefill_tokens_per_second"], 1000.0)
        self.assertEqual(report["ttst"][0]["ttft_seconds"], 0.1)

    def test_without_a_build_nothing_is_said_to_be_checked(self):
        code, report = self.run_main(built=False)
        self.assertEqual(code, 1)
        self.assertEqual([(step["name"], step["status"]) for step in report["steps"]], [("all checks", "failed")])


if __name__ == "__main__":
    unittest.main()
