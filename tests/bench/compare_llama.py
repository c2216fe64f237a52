"""Prefill and decode speed of SmartGen and llama.cpp; see compare_llama.sh.

Each engine runs in its own process, one after the other, for some rounds; medians count. llama.cpp is
measured with and without flash attention, and the better of the two counts for it, separately for
prefill and decode.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KINDS = ("as-is", "Q8_0", "Q4_0", "BF16")
RATES = ("prefill_tokens_per_second", "decode_tokens_per_second")


def requantise(source, target, kind):
    """`source` with its matrices in another kind. Vectors stay in F32, metadata as they are."""
    import gguf
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, arch)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        sub_type = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type)
    wanted = gguf.GGMLQuantizationType[kind]
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if len(tensor.shape) < 2:
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def measure_llama(model_path, lengths, decode_tokens, threads, flash):
    """Rows as `smartgen bench model --json` has them. Which tokens does not matter to the speed."""
    import llama_cpp
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(model_path.encode(),
                                                 llama_cpp.llama_model_default_params())
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = max(lengths) + decode_tokens + 1
    params.n_batch = 2048
    params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = threads
    params.flash_attn_type = (llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash
                              else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED)
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise SystemExit(f"llama.cpp has no context for {model_path} with these parameters")
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    tokens = [i * 7919 % vocabulary for i in range(max(lengths) + decode_tokens)]

    def run(ids, at_once):
        begin = time.perf_counter()
        for i in range(0, len(ids), at_once):
            part = ids[i:i + at_once]
            array = (llama_cpp.llama_token * len(part))(*part)  # the batch only points to it
            batch = llama_cpp.llama_batch_get_one(array, len(part))
            if llama_cpp.llama_decode(context, batch) != 0:
                raise SystemExit("llama_decode failed")
        llama_cpp.llama_synchronize(context)
        return len(ids) / (time.perf_counter() - begin)

    rows = []
    for length in [min(lengths), *lengths]:  # the first to warm up
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        prefill = run(tokens[:length], params.n_batch)
        decode = run(tokens[length:length + decode_tokens], 1)
        rows.append(dict(zip(("prompt_tokens", *RATES), (length, prefill, decode))))
    return rows[1:]


def run_json(command):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {result.returncode}:\n"
                         f"{result.stderr[-2000:]}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def measure(args, engine, path):
    if engine == "smartgen":
        return run_json([args.smartgen, "bench", "model", "--json", "--model", path,
                         "--lengths", ",".join(map(str, args.lengths)), "--runs", "1",
                         "--decode-tokens", str(args.decode_tokens),
                         "--threads", str(args.threads), "--compute", args.compute])["rows"]
    return run_json([sys.executable, os.path.abspath(__file__), "--llama-worker",
                     json.dumps({"model_path": path, "lengths": args.lengths,
                                 "decode_tokens": args.decode_tokens, "threads": args.threads,
                                 "flash": engine == "llama.cpp flash"})])


def compare(args, kind, path):
    """One table row a length, with everything that was measured."""
    engines = ("smartgen", "llama.cpp", "llama.cpp flash")
    taken = {engine: [] for engine in engines}
    for turn in range(args.rounds):
        for engine in engines:
            print(f"{kind}: {engine}, round {turn + 1} of {args.rounds}", file=sys.stderr)
            taken[engine].append(measure(args, engine, path))
    out = []
    for i, length in enumerate(args.lengths):
        row = {"kind": kind, "prompt_tokens": length, "measured": {}}
        for rate in RATES:
            rounds = {e: [rows[i][rate] for rows in taken[e]] for e in engines}
            medians = {e: statistics.median(values) for e, values in rounds.items()}
            best = max(medians["llama.cpp"], medians["llama.cpp flash"])
            row["measured"][rate] = rounds
            row[rate] = {"smartgen": medians["smartgen"], "llama.cpp": best,
                         "ratio": medians["smartgen"] / best}
        out.append(row)
    return out


def table(rows):
    lines = ["| weights | prompt | prefill tokens/s | llama.cpp | ratio | decode tokens/s | "
             "llama.cpp | ratio |", "|---|---:|---:|---:|---:|---:|---:|---:|"]
    for row in rows:
        cells = [row["kind"], str(row["prompt_tokens"])]
        for rate in RATES:
            cells += [f"{row[rate]['smartgen']:.1f}", f"{row[rate]['llama.cpp']:.1f}",
                      f"{row[rate]['ratio']:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.path.expanduser(
        "~/.cache/smartgen/smollm2-135m.gguf"), help="GGUF file")
    parser.add_argument("--smartgen", default=os.path.join(ROOT, "build/release/bin/smartgen"))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 2048])
    parser.add_argument("--decode-tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--compute", default="auto", help="SmartGen's")
    parser.add_argument("--json", help="file to write all measurements to")
    parser.add_argument("--llama-worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.llama_worker:
        print(json.dumps(measure_llama(**json.loads(args.llama_worker))))
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="smartgen-compare-") as folder:
        for kind in args.kinds:
            path = args.model
            if kind != "as-is":
                path = os.path.join(folder, f"{kind}.gguf")
                requantise(args.model, path, kind)
            rows += compare(args, kind, path)
            if kind != "as-is":
                os.remove(path)
    print(table(rows))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump({"threads": args.threads, "rounds": args.rounds, "rows": rows}, out, indent=1)
            out.write("\n")


if __name__ == "__main__":
    main()
