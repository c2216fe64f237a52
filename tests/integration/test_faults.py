"""Processes that die, stall and come back: the client sees one stream."""
import json
import signal
import threading
import time
import urllib.error
import urllib.request

import pytest
from cluster import Cluster, metrics_of, natural_text, wait_until


def model_of(c):
    with urllib.request.urlopen(c.url + "/v1/models", timeout=10) as r:
        return json.load(r)["data"][0]["id"]


def ask(c, prompt, tokens=8, **more):
    return c.post("/v1/completions", {"model": c.model, "prompt": prompt, "max_tokens": tokens,
                                      "temperature": 0, "ignore_eos": True, **more})


def prefills_running(c):
    return sum(v for k, v in metrics_of(c.prefill_metrics[0]).items()
               if k.startswith("smartgen_requests_running"))


@pytest.fixture()
def pair():
    with Cluster(prefill_args=["--prefix_cache=false"],
                 decode_args=["--prefix_cache=false"]) as c:
        c.model = model_of(c)
        yield c


def test_H4_H11_restarted_prefilld_is_used_again_without_restarting_decoded(pair):
    prompt = natural_text()[:600]
    first = ask(pair, prompt)
    assert first["smartgen"]["mode"] in ("full", "exact")
    pair.prefills[0].stop(signal.SIGKILL)
    wait_until(lambda: pair.peers_up() == 0, 5, "the loss is seen")
    alone = ask(pair, prompt)
    assert alone["smartgen"]["mode"] == "local" and alone["smartgen"]["fallback_reason"]
    pair.prefills[0] = pair.start_prefill(0)
    wait_until(lambda: pair.peers_up() == 1, 30, "paired again")
    again = ask(pair, prompt)
    assert again["smartgen"]["mode"] in ("full", "exact")
    assert first["choices"][0]["text"] == alone["choices"][0]["text"] == again["choices"][0]["text"]
    assert any("fallback_total" in k and v > 0 for k, v in metrics_of(pair.decode_metrics).items())


def test_killing_prefilld_in_mid_prefill_changes_no_token(pair):
    prompt = natural_text()[:9000]
    want = ask(pair, prompt)["choices"][0]["text"]
    got = {}
    thread = threading.Thread(target=lambda: got.update(ask(pair, prompt)))
    thread.start()
    wait_until(lambda: prefills_running(pair) >= 1, 20, "the prefill of some 2,000 tokens runs", 0.01)
    pair.prefills[0].stop(signal.SIGKILL)
    thread.join(120)
    assert got["choices"][0]["text"] == want
    assert got["smartgen"]["fallback_reason"]
    pair.prefills[0] = pair.start_prefill(0)
    wait_until(lambda: pair.peers_up() == 1, 30, "paired again")
    wait_until(lambda: pair.pages_used() == (0, [0]), 5, "all pages are back")


def test_a_stopped_prefilld_is_noticed_by_missed_heartbeats(pair):
    prompt = natural_text()[:400]
    ask(pair, prompt)
    pair.prefills[0].process.send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    try:
        wait_until(lambda: pair.peers_up() == 0, 8, "three missed heartbeats")
        assert ask(pair, prompt)["smartgen"]["mode"] == "local"
    finally:
        pair.prefills[0].process.send_signal(signal.SIGCONT)
    assert time.monotonic() - begin < 60
    wait_until(lambda: pair.peers_up() == 1, 30, "it comes back")


def test_G8_H16_sigterm_lets_streams_finish():
    with Cluster() as c:
        c.model = model_of(c)
        results = []

        def stream():
            body = json.dumps({"model": c.model, "prompt": "Once upon a time", "max_tokens": 40,
                               "stream": True, "ignore_eos": True}).encode()
            request = urllib.request.Request(c.url + "/v1/completions", body,
                                             {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as r:
                results.append(r.read().decode())
        threads = [threading.Thread(target=stream) for _ in range(10)]
        for t in threads:
            t.start()
        wait_until(lambda: sum(v for k, v in metrics_of(c.gateway_port).items()
                               if k.startswith("smartgen_requests_running")) >= 10, 10, "ten running")
        assert c.gateway.stop() == 0
        for t in threads:
            t.join(60)
        assert len(results) == 10 and all(r.rstrip().endswith("data: [DONE]") for r in results)


def test_G1_without_prefill_and_local_fallback_the_client_gets_503_quickly():
    with Cluster(decode_args=["--mode", "full", "--local_fallback=false"]) as c:
        c.model = model_of(c)
        ask(c, "Hello")
        c.prefills[0].stop(signal.SIGKILL)
        wait_until(lambda: c.peers_up() == 0, 5, "the loss is seen")
        with pytest.raises(urllib.error.HTTPError) as e:
            ask(c, "Hello")
        assert e.value.code == 503
        c.prefills[0] = c.start_prefill(0)


def test_H3_a_pair_that_cannot_agree_says_which_field_differs():
    c = Cluster(decode_args=["--compute", "f32"], prefill_args=["--compute", "bf16"])
    try:
        c.wait_ready(peers=False)
        wait_until(lambda: "compute" in c.decode.log_text(), 20, "the field is named in the log")
        assert c.peers_up() == 0
        c.model = model_of(c)
        assert ask(c, "Hello")["smartgen"]["mode"] == "local"
    finally:
        c.stop()
