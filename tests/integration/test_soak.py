"""Many requests, some of them aborted by the client at random moments: no error, no leak."""
import concurrent.futures
import http.client
import json
import os
import random
import socket
import time

from cluster import Cluster, natural_text, wait_until

REQUESTS = int(os.environ.get("SOAK_REQUESTS", "1000"))
CONCURRENCY = 16


def one(cluster, text, index):
    """Sends a request; every tenth is cut off after a random time. Returns 'ok', 'aborted' or an error."""
    rng = random.Random(index)
    start = rng.randrange(len(text) - 4000)
    body = {"model": cluster.model, "prompt": text[start:start + rng.randrange(20, 1200)],
            "max_tokens": rng.randrange(1, 24), "stream": rng.random() < 0.5,
            "temperature": rng.choice([0, 1.0]), "seed": index}
    abort_after = rng.expovariate(1 / 0.6) if index % 10 == 0 else None
    connection = http.client.HTTPConnection("127.0.0.1", cluster.gateway_port, timeout=120)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body),
                           {"Content-Type": "application/json"})
        if abort_after is not None:
            time.sleep(abort_after)
            connection.sock.shutdown(socket.SHUT_RDWR)
            return "aborted"
        response = connection.getresponse()
        data = response.read().decode()
        if response.status != 200:
            return f"{response.status}: {data[:300]}"
        if body["stream"]:
            return "ok" if data.rstrip().endswith("data: [DONE]") else f"stream: {data[-300:]}"
        return "ok" if json.loads(data)["choices"][0]["finish_reason"] else f"no reason: {data[:300]}"
    except OSError as e:
        return f"{type(e).__name__}: {e}"
    finally:
        connection.close()


def test_requests_with_aborts_leave_nothing_behind():
    text = natural_text()
    with Cluster(decode_args=["--kv_bytes", "1GiB"], prefill_args=["--kv_bytes", "1GiB"]) as c:
        with_models = http.client.HTTPConnection("127.0.0.1", c.gateway_port, timeout=10)
        with_models.request("GET", "/v1/models")
        c.model = json.load(with_models.getresponse())["data"][0]["id"]
        with_models.close()
        wait_until(lambda: c.pages_used() == (0, [0]), 10, "idle at the start")

        results, rss, begin = [], [], time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(CONCURRENCY) as pool:
            for i, result in enumerate(pool.map(lambda n: one(c, text, n), range(REQUESTS))):
                results.append(result)
                if i % max(1, REQUESTS // 10) == 0:
                    rss.append([d.rss_bytes() >> 20 for d in c.daemons()])
        took = time.monotonic() - begin
        end = time.monotonic()
        wait_until(lambda: c.pages_used() == (0, [0]), 10,
                   f"all pages back, still used: {c.pages_used()}", tick=0.02)
        back = time.monotonic() - end
        rss.append([d.rss_bytes() >> 20 for d in c.daemons()])

        errors = [r for r in results if r not in ("ok", "aborted")]
        print(f"\n{REQUESTS} requests in {took:.0f} s: {results.count('ok')} ok, "
              f"{results.count('aborted')} aborted, {len(errors)} errors; pages back after "
              f"{back * 1e3:.0f} ms; resident MiB of prefilld, decoded, gateway over time: {rss}")
        assert not errors, errors[:5]
        assert back < 1.0
        # The KV pool is touched as it is first used, so memory may grow in the first half; then it is flat.
        middle = rss[len(rss) // 2]
        for name, at_middle, at_end in zip(("prefilld", "decoded", "gateway"), middle, rss[-1]):
            assert at_end <= at_middle * 1.1 + 32, f"{name} grew from {at_middle} to {at_end} MiB"
