"""`smartgen bench ttst` with real daemons: short runs, and nothing left behind however they end."""
import json
import os
import signal
import subprocess
import time

import pytest
from cluster import BIN, MODEL, Cluster, wait_until

KV_BYTES = 256 * 23040  # SmolLM2-135M in bf16: 2 * 30 layers * 3 heads * 64 * 2 bytes a token


def command(*more):
    return [os.path.join(BIN, "smartgen"), "bench", "ttst", "--model", MODEL, "--lengths", "256",
            "--tokens", "8", "--prompts", "2", "--calibration-runs", "1", *more]


def run(*more):
    result = subprocess.run(command(*more), capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    return result


def processes_of(group):
    """Command lines of the processes whose environment carries `group`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if group.encode() in f.read():
                    found.append(pid)
        except OSError:
            pass
    return found


@pytest.fixture(scope="module")
def shaped(tmp_path_factory):
    """A run over a shaped link, where this user may have one."""
    folder = tmp_path_factory.mktemp("ttst")
    result = run("--modes", "full,local", "--ratios", "4", "--json", str(folder / "out.json"),
                 "--svg-dir", str(folder / "svg"))
    out = json.loads((folder / "out.json").read_text())
    if os.geteuid() == 0:
        assert out["shaped"], out["link"]
    elif not out["shaped"]:
        pytest.skip(out["link"])
    return out, result, folder


def cell(out, case):
    return next(c for c in out["cells"] if c["case"] == case)


def test_every_mode_sees_every_prompt_and_generates_the_same_tokens(shaped):
    out, _, _ = shaped
    assert [c["case"] for c in out["cells"]] == ["full", "local"]
    for c in out["cells"]:
        assert [r["prompt"] for r in c["runs"]] == [0, 1]
        assert [len(r["token_seconds"]) for r in c["runs"]] == [8, 8]
        assert c["summary"]["failed"] == 0 and "served_otherwise" not in c["summary"]
        assert c["summary"]["tokens_equal"] is True and c["summary"]["compared"] == 2
    full, local = cell(out, "full"), cell(out, "local")
    assert [r["tokens"] for r in full["runs"]] == [r["tokens"] for r in local["runs"]]
    assert full["runs"][0]["tokens"] != full["runs"][1]["tokens"], "different prompts"


def test_the_link_takes_as_much_longer_than_the_prefill_as_asked(shaped):
    out, _, _ = shaped
    calibration, link = cell(out, "full")["calibration"], cell(out, "full")["link"]
    assert calibration["kv_bytes"] == KV_BYTES
    assert link["t_t_seconds"] == pytest.approx(4 * calibration["t_p_seconds"])
    assert link["bytes_per_second"] == pytest.approx(KV_BYTES / link["t_t_seconds"])
    assert link["probed_bytes_per_second"] == pytest.approx(link["bytes_per_second"], rel=0.1)
    assert link["dropped_packets"] == 0


def test_full_waits_for_the_transfer_and_local_does_not_transfer(shaped):
    out, _, _ = shaped
    full, local = cell(out, "full"), cell(out, "local")
    assert full["summary"]["bytes_sent_by_path"] == {"full": KV_BYTES}
    assert local["summary"]["bytes_sent"] == 0
    # All of the KV passed the link between the arrival and the second token.
    for r in full["runs"]:
        assert r["token_seconds"][1] >= 0.95 * full["link"]["t_t_seconds"]
    assert full["summary"]["ttst_gap_seconds"]["min"] > local["summary"]["ttst_gap_seconds"]["max"]


def test_times_are_those_of_the_tokens(shaped):
    out, _, _ = shaped
    for c in out["cells"]:
        summary = c["summary"]
        seconds = [r["token_seconds"] for r in c["runs"]]
        assert all(s == sorted(s) for s in seconds)
        assert summary["ttst_e2e_seconds"]["min"] == min(s[1] for s in seconds)
        assert summary["ttft_seconds"]["max"] == max(s[0] for s in seconds)
        assert len(summary["ctl_seconds"]) == 8 and len(summary["steps_seconds"]) == 7


def test_what_is_said_of_the_run_is_complete(shaped):
    out, result, folder = shaped
    assert out["command"].startswith("smartgen bench ttst --model")
    assert out["machine"]["cores"] >= 1 and out["version"] and out["date"].endswith("Z")
    for word in ("| full ", "| local ", "TTST e2e s", "tokens equal", "KV sent by path"):
        assert word in result.stdout
    assert sorted(os.listdir(folder / "svg")) == ["ctl_256_R4.svg", "ttst_256.svg"]
    import xml.etree.ElementTree
    for name in os.listdir(folder / "svg"):
        xml.etree.ElementTree.parse(folder / "svg" / name)


def test_without_namespaces_every_output_says_that_the_link_is_not_shaped(tmp_path):
    path = tmp_path / "out.json"
    result = run("--modes", "full", "--network", "loopback", "--json", str(path),
                 "--svg-dir", str(tmp_path), "--baseline", "none")
    out = json.loads(path.read_text())
    assert out["shaped"] is False and out["cells"][0]["link"]["shaped"] is False
    assert "tokens_equal" not in out["cells"][0]["summary"]
    assert "NOT SHAPED" in result.stdout and "NOT SHAPED" in result.stderr
    assert "NOT SHAPED" in (tmp_path / "ttst_256.svg").read_text()


def test_daemons_that_run_already_can_be_measured(tmp_path):
    path = tmp_path / "out.json"
    with Cluster(prefill_args=["--prefix_cache=false"], decode_args=["--prefix_cache=false"],
                 common=["--compute=bf16"]) as c:
        run("--decode", f"127.0.0.1:{c.decode_port}", "--prefill", c.prefill_list(),
            "--decode-metrics", f"http://127.0.0.1:{c.decode_metrics}",
            "--prefill-metrics", f"http://127.0.0.1:{c.prefill_metrics[0]}",
            "--link-mbit", "8000", "--modes", "full,local", "--json", str(path))
    out = json.loads(path.read_text())
    full, local = cell(out, "full"), cell(out, "local")
    assert full["link"]["t_t_seconds"] == pytest.approx(KV_BYTES / 1e9)
    assert full["summary"]["bytes_sent_by_path"] == {"full": KV_BYTES}
    assert full["summary"]["tokens_equal"] and local["summary"]["tokens_equal"]


def test_the_prefix_sweep_has_the_cached_part_computed_once(tmp_path):
    path = tmp_path / "out.json"
    run("--modes", "full", "--sweep", "prefix", "--ratios", "1", "--prompts", "1",
        "--json", str(path))
    out = json.loads(path.read_text())
    cached = {c["prefix_hit"]: c["runs"][0]["stats"]["cached_tokens"] for c in out["cells"]}
    assert cached == {0: 0, 0.75: 192, 0.9: 224}, "whole pages of 16 tokens"


def test_crossover_predicts_and_measures(tmp_path):
    path = tmp_path / "out.json"
    arguments = command("--bandwidths", "20,2000", "--prompts", "1", "--json", str(path),
                        "--svg-dir", str(tmp_path))
    arguments[2] = "crossover"
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    out = json.loads(path.read_text())
    if not out["shaped"]:
        pytest.skip(out["link"])
    full = [c for c in out["cells"] if c["case"] == "full"]
    slow, fast = (c["summary"]["ttst_e2e_seconds"]["median"] for c in full)
    assert slow > fast
    # 256 tokens of KV at 2.5 MB/s are 2.36 s, and the first layer has to be computed before.
    assert full[0]["predicted_ttst_e2e_seconds"] > KV_BYTES / 2.5e6
    assert slow == pytest.approx(full[0]["predicted_ttst_e2e_seconds"], rel=0.25)
    assert "| full " in result.stdout and (tmp_path / "crossover_256.svg").exists()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_process_and_no_namespace(how, tmp_path):
    tag = f"BENCH_TEST_TAG=tag{os.getpid()}x{int(how)}"
    name, _, value = tag.partition("=")
    log = open(tmp_path / "log", "wb")
    bench = subprocess.Popen(command("--ratios", "50"), stdout=log, stderr=log,
                             env={**os.environ, name: value})
    try:
        wait_until(lambda: len(processes_of(tag)) >= 3, 60, "the daemons run")
        time.sleep(1)
        bench.send_signal(how)
        bench.wait(30)
        assert bench.returncode != 0
        # Namespaces have no names: they end with the last process in them.
        wait_until(lambda: not processes_of(tag), 30, "all processes gone")
    finally:
        if bench.poll() is None:
            bench.kill()
            bench.wait()
        log.close()


@pytest.mark.parametrize("arguments,message", [
    (["--modes", "fast"], 'mode: want one of full, local'),
    (["--lengths", "8190"], "8190 prompt tokens and 8 generated ones are more than the context"),
    (["--lengths", "x"], 'lengths: want numbers from 1 to'),
    (["--ratios", "0"], "ratios: want numbers from 0.01"),
    (["--sweep", "moon"], "sweep: want one of speculative"),
    (["--text", "/none/such"], "/none/such"),
    (["--model", "/none/such"], "/none/such"),
    (["--json", "/none/such/out.json"], "json: cannot write"),
    (["--", "--no-such-key=1"], "no daemon has the flag"),
])
def test_bad_input_is_said(arguments, message):
    result = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=120)
    assert result.returncode == 1 and message in result.stderr
