"""Greedy tokens through gateway, decoded and prefilld against those of one process.

    tests/integration/equality.py [--prompts 50] [--tokens 16] [--compute f32,bf16] [--variants WORDS] [--json FILE]

Natural prompts of 1 to 4,000 tokens, whole and in chunks, without and with prefix-cache hits, alone and
eight at a time. A prompt whose tokens differ counts as a difference unless, at the first differing step,
the reference's two best log-probabilities lie within --gap of each other (a near-tie); such cases are
counted and shown. The reference is decoded in mode `local`, alone, whole, without a prefix cache; a few
prompts are also run through `smartgen run`, which has no servers in it at all.
"""
import argparse
import concurrent.futures
import json
import os
import random
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import BIN, MODEL, Cluster, natural_text  # noqa: E402

WHOLE, CHUNKED = "8192", "256"
VARIANTS = [  # name, mode, prefix cache, chunk, at a time, passes
    ("full, whole, alone", "full", False, WHOLE, 1, 1),
    ("full, chunks of 256, alone", "full", False, CHUNKED, 1, 1),
    ("full, chunks of 256, 8 at a time", "full", False, CHUNKED, 8, 1),
    ("full, prefix cache, 8 at a time, twice", "full", True, CHUNKED, 8, 2),
    ("local, chunks of 256, prefix cache, 8 at a time, twice", "local", True, CHUNKED, 8, 2),
]


def tokenize(text):
    out = subprocess.run([os.path.join(BIN, "smartgen"), "tokenize", "--model", MODEL],
                         input=json.dumps({"text": text}) + "\n", capture_output=True, text=True,
                         check=True)
    return json.loads(out.stdout.splitlines()[0])["ids"]


def make_prompts(count, longest=4000):
    ids, rng = tokenize(natural_text()), random.Random(5)
    # Evenly spaced on a logarithmic scale.
    lengths = [round(longest ** (i / max(1, count - 1))) for i in range(count)]
    return [ids[start:start + n] for n in lengths
            for start in [rng.randrange(len(ids) - longest)]]


def ask(cluster, ids, tokens, mode):
    answer = cluster.post("/v1/completions", {
        "model": cluster.model, "prompt": ids, "max_tokens": tokens, "temperature": 0,
        "ignore_eos": True, "logprobs": 2, "return_token_ids": True, "smartgen": {"mode": mode}})
    choice = answer["choices"][0]
    assert answer["smartgen"]["mode"] == mode, answer["smartgen"]
    gaps = []
    for top in choice["logprobs"]["top_logprobs"]:
        values = sorted(top.values(), reverse=True)
        gaps.append(values[0] - values[1] if len(values) > 1 else 0.0)
    return choice["token_ids"], gaps


def ask_all(cluster, prompts, tokens, mode, at_a_time):
    with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
        return list(pool.map(lambda p: ask(cluster, p, tokens, mode), prompts))


def start(compute, prefix_cache, chunk, prefills):
    flags = ["--compute", compute, "--max_prefill_tokens", chunk,
             f"--prefix_cache={'true' if prefix_cache else 'false'}", "--kv_bytes", "3GiB"]
    c = Cluster(prefills=prefills, prefill_args=flags, decode_args=flags).wait_ready()
    import urllib.request
    with urllib.request.urlopen(c.url + "/v1/models", timeout=10) as r:
        c.model = json.load(r)["data"][0]["id"]
    return c


def one_process(ids, tokens, compute):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(ids, f)
        f.flush()
        out = subprocess.run([os.path.join(BIN, "smartgen"), "run", "--model", MODEL, "--token-ids",
                              f.name, "--max-tokens", str(tokens), "--compute", compute,
                              "--ignore-eos", "--json"], capture_output=True, text=True, check=True)
    return json.loads(out.stdout)["generated_ids"]


def compare(reference, got, gap):
    """(different, near ties) of two lists of (tokens, gaps)."""
    different, ties = [], []
    for i, ((want, gaps), (have, _)) in enumerate(zip(reference, got)):
        if want != have:
            step = next(s for s in range(len(want)) if s >= len(have) or want[s] != have[s])
            (ties if gaps[step] < gap else different).append((i, step, round(gaps[step], 4)))
    return different, ties


def run(prompts, tokens, compute, gap, variants=VARIANTS, spot_checks=3, log=print):
    """A list of rows: variant, prompts, different, near ties."""
    rows = []
    c = start(compute, False, WHOLE, 0)
    try:
        reference = ask_all(c, prompts, tokens, "local", 1)
    finally:
        c.stop()
    step = max(1, len(prompts) // max(1, spot_checks))
    picked = list(range(0, len(prompts), step))[:spot_checks]
    got = [(one_process(prompts[i], tokens, compute), None) for i in picked]
    different, ties = compare([reference[i] for i in picked], got, gap)
    rows.append(dict(compute=compute, variant="smartgen run (no servers)", prompts=len(picked),
                     different=different, near_ties=ties))
    log(rows[-1])
    for name, mode, cache, chunk, at_a_time, passes in variants:
        begin = time.monotonic()
        c = start(compute, cache, chunk, 1 if mode == "full" else 0)
        try:
            for _ in range(passes):
                got = ask_all(c, prompts, tokens, mode, at_a_time)
                different, ties = compare(reference, got, gap)
                rows.append(dict(compute=compute, variant=name, prompts=len(prompts),
                                 different=different, near_ties=ties,
                                 seconds=round(time.monotonic() - begin, 1)))
                log(rows[-1])
        finally:
            c.stop()
    return rows


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--prompts", type=int, default=50)
    p.add_argument("--longest", type=int, default=4000)
    p.add_argument("--tokens", type=int, default=16)
    p.add_argument("--compute", default="f32,bf16")
    p.add_argument("--variants", default="", help="only those whose name holds one of these words")
    p.add_argument("--json")
    o = p.parse_args()
    prompts = make_prompts(o.prompts, o.longest)
    print(f"{len(prompts)} prompts, {min(map(len, prompts))} to {max(map(len, prompts))} tokens, "
          f"{sum(map(len, prompts))} in total")
    rows = []
    variants = [v for v in VARIANTS if any(w in v[0] for w in o.variants.split(","))]
    for compute in o.compute.split(","):
        rows += run(prompts, o.tokens, compute, 0.02 if compute == "bf16" else 0.0, variants)
    if o.json:
        with open(o.json, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=1)
    bad = sum(len(r["different"]) for r in rows)
    ties = sum(len(r["near_ties"]) for r in rows)
    print(f"{bad} differences, {ties} near-ties in {len(rows)} runs of up to {len(prompts)} prompts")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
