"""Makes the files in tests/golden/dequant: blocks of every type and the values that the gguf Python
package decodes them to. TYPE.blocks holds rows one after the other, TYPE.f32 their float32 values.

  pip install gguf==0.19.0 && python tests/golden/make_dequant.py
"""

import pathlib

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf import quants

ROWS = 3
OUT = pathlib.Path(__file__).parent / "dequant"
QUANTISED = [T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0]
# Where each block keeps its half-precision numbers; random bytes there must not be NaN or infinite.
HALVES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}


def random_blocks(rng, kind, count):
    """Blocks of random bytes, so that every bit of the format matters."""
    _, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in HALVES[kind]:
        # Halves of any finite size, subnormal ones included.
        blocks[:, at + 1] = (blocks[:, at + 1] & 0x80) | rng.integers(0, 0x7C, count, dtype=np.uint8)
    return blocks


def write(kind, rows):
    values = quants.dequantize(rows, kind).astype("<f4")
    (OUT / f"{kind.name.lower()}.blocks").write_bytes(rows.tobytes())
    (OUT / f"{kind.name.lower()}.f32").write_bytes(values.tobytes())


def main():
    rng = np.random.default_rng(20261130)
    OUT.mkdir(exist_ok=True)
    for kind in HALVES:
        block, size = GGML_QUANT_SIZES[kind]
        per_row = 1 if block == 256 else 3
        rows = random_blocks(rng, kind, ROWS * per_row).reshape(ROWS, per_row * size)
        if kind in QUANTISED:
            real = rng.normal(0, 0.02, (ROWS, per_row * block)).astype(np.float32)
            rows = np.concatenate([rows, quants.quantize(real, kind)], axis=0)
        write(kind, rows)
    halves = np.array([0, 1, 2, 0x3FF, 0x400, 0x3C00, 0x7BFF, 0x7C00, 0xFC00, 0x8000, 0x8001, 0xBC00]
                      + list(rng.integers(0, 0x7C00, 84)), dtype="<u2").reshape(3, 32)
    (OUT / "f16.blocks").write_bytes(halves.tobytes())
    (OUT / "f16.f32").write_bytes(halves.view("<f2").astype("<f4").tobytes())
    signs = rng.integers(0, 2, 96) << 15
    bf16 = (rng.integers(0, 0x7F80, 96) | signs).astype("<u2").reshape(3, 32)
    (OUT / "bf16.blocks").write_bytes(bf16.tobytes())
    (OUT / "bf16.f32").write_bytes(
        quants.dequantize(bf16.view(np.uint8), T.BF16).astype("<f4").tobytes())
    single = rng.normal(0, 1, (3, 32)).astype("<f4")
    (OUT / "f32.blocks").write_bytes(single.tobytes())
    (OUT / "f32.f32").write_bytes(single.tobytes())


if __name__ == "__main__":
    main()
