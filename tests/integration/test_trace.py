"""`smartgen trace` against real daemons: what a viewer would open, and what it says when it cannot."""
import collections
import json
import os
import subprocess
import urllib.error

import pytest
from cluster import BIN, Cluster, free_port, natural_text


@pytest.fixture(scope="module")
def traced_cluster():
    with Cluster() as c:
        yield c


def trace(*args):
    return subprocess.run([os.path.join(BIN, "smartgen"), "trace", *map(str, args)],
                          capture_output=True, text=True, timeout=180)


@pytest.fixture(scope="module")
def prompt(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "prompt.txt"
    path.write_text(natural_text()[:3000])
    return path


def check_format(path):
    """Every event as the format wants it, and nested in its thread. Returns the whole."""
    data = json.loads(path.read_text())
    threads = collections.defaultdict(list)
    for event in data["traceEvents"]:
        assert event["ph"] in ("X", "i", "M"), event
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int), event
        assert event["ts"] >= 0, event
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["name"] and event["cat"], event
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in threads.values():
        open_ends = []
        for begin, end in sorted(spans, key=lambda s: (s[0], -s[1])):
            while open_ends and open_ends[-1] <= begin + 1e-3:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 1e-3, (begin, end, open_ends)
            open_ends.append(end)
    return data


def processes(data):
    return {e["pid"]: e["args"]["name"] for e in data["traceEvents"] if e["name"] == "process_name"}


def tracks(data):
    """{(process, thread): {names of its events}}"""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in data["traceEvents"]
             if e["name"] == "thread_name"}
    who = processes(data)
    out = collections.defaultdict(set)
    for e in data["traceEvents"]:
        if e["ph"] != "M":
            out[who[e["pid"]].split()[0], names[e["pid"], e["tid"]]].add(e["name"])
    return out


def bytes_by_path(data):
    who = processes(data)
    out = collections.Counter()
    for e in data["traceEvents"]:
        if e["ph"] == "X" and e["name"] == "received" and who[e["pid"]].startswith("decoded"):
            out[e["cat"]] += e["args"]["bytes"]
    return {path: count for path, count in out.items() if count}


def test_a_prompt_is_sent_traced_and_collected(traced_cluster, prompt, tmp_path):
    out = tmp_path / "trace.json"
    run = trace("--url", traced_cluster.url, "--prompt-file", prompt, "--max-tokens", 12,
                "--mode", "smartgen", "--out", out)
    assert run.returncode == 0, run.stderr
    assert "ui.perfetto.dev" in run.stdout
    data = check_format(out)
    shown = tracks(data)
    assert {"chunk", "layer", "KV ready"} <= shown["prefilld", "prefill layers"]
    assert {"prompt", "queued", "prefill", "token"} <= shown["prefilld", "request"]
    assert {"request", "waiting for token 1", "token", "release"} <= shown["decoded", "request"]
    assert any(name.startswith("step: ") for name in shown["decoded", "decode steps"]), shown
    assert ("decoded", "received: push") in shown and ("prefilld", "sent: push") in shown
    assert ("decoded", "received: metadata") in shown
    assert "request" in shown["client", "request"]
    other = data["otherData"]
    assert other["response"]["mode"] == "smartgen"
    assert bytes_by_path(data) == {k: v for k, v in other["response"]["path_bytes"].items() if v}
    assert [d["daemon"] for d in other["daemons"]] == ["decoded", "prefilld"]
    for daemon in other["daemons"]:
        # One machine, one clock.
        assert abs(daemon["clock"]["offset_us"]) <= daemon["clock"]["uncertainty_us"] + 1e-3
        assert daemon["traces"][0]["dropped"] == 0


def test_a_request_made_before_is_collected_by_its_id(traced_cluster, tmp_path):
    answer = traced_cluster.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": natural_text()[3000:5000]}], "max_tokens": 6,
        "n": 2, "smartgen": {"trace": True, "mode": "full"}})
    out = tmp_path / "trace.json"
    run = trace("--decode", f"127.0.0.1:{traced_cluster.decode_port}",
                "--prefill", traced_cluster.prefill_list(), "--request", answer["id"], "--out", out)
    assert run.returncode == 0, run.stderr
    data = check_format(out)
    # Two choices: two generations on each side.
    assert len(processes(data)) == 4, processes(data)
    assert data["otherData"]["request_id"] == answer["id"]


def test_what_cannot_be_collected_says_why_and_leaves_no_file(traced_cluster, prompt, tmp_path):
    decode = f"127.0.0.1:{traced_cluster.decode_port}"
    out = tmp_path / "trace.json"
    untraced = traced_cluster.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2})["id"]
    nobody = f"127.0.0.1:{free_port()}"
    for args, why in (
            (("--decode", decode, "--request", untraced), '"smartgen": {"trace": true}'),
            (("--decode", decode, "--request", "cmpl-none"), "cmpl-none"),
            (("--decode", nobody, "--request", untraced), nobody),
            (("--url", f"http://{nobody}", "--prompt-file", prompt), nobody),
            (("--url", traced_cluster.url, "--prompt-file", tmp_path / "none"), "none"),
            (("--url", traced_cluster.url, "--prompt-file", prompt, "--mode", "fast"), "fast"),
            (("--url", traced_cluster.url, "--prompt-file", prompt, "--options", "[1]"), "options"),
            (("--url", traced_cluster.url, "--prompt-file", prompt, "--prefill", nobody), nobody),
            (("--request", untraced), "decode_address"),
            ((), "neither")):
        run = trace(*args, "--out", out)
        assert run.returncode == 1, (args, run.stdout)
        assert why in run.stderr, (args, run.stderr)
        assert not out.exists(), args
    nowhere = tmp_path / "no" / "trace.json"
    run = trace("--url", traced_cluster.url, "--prompt-file", prompt, "--out", nowhere)
    assert run.returncode == 1 and str(nowhere) in run.stderr, run.stderr


def test_trace_must_be_a_boolean(traced_cluster):
    with pytest.raises(urllib.error.HTTPError) as refused:
        traced_cluster.post("/v1/completions", {"prompt": "Hello", "smartgen": {"trace": "yes"}})
    assert refused.value.code == 400
    assert "smartgen.trace" in refused.value.read().decode()
