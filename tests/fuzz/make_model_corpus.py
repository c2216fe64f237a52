"""Makes the seed inputs in corpus/gguf and corpus/safetensors: the smallest models of each kind.

  python3 tests/fuzz/make_model_corpus.py
"""

import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).parent / "corpus"


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def u32(value):
    return struct.pack("<II", 4, value)


def f32(value):
    return struct.pack("<If", 6, value)


def string(value):
    return struct.pack("<I", 8) + text(value)


def array(kind, elements):
    return struct.pack("<IIQ", 9, kind, len(elements)) + b"".join(elements)


def gguf(version, hidden, kind, block, block_bytes, more_keys=(), more_tensors=()):
    """A llama of one layer with 2 heads; matrices of type `kind`."""
    tokens = ["a", "b", "ab", "<e>"]
    keys = [
        ("general.architecture", string("llama")),
        ("llama.block_count", u32(1)),
        ("llama.context_length", u32(64)),
        ("llama.embedding_length", u32(hidden)),
        ("llama.feed_forward_length", array(5, [struct.pack("<i", hidden)])),
        ("llama.attention.head_count", u32(2)),
        ("llama.attention.head_count_kv", u32(1)),
        ("llama.attention.layer_norm_rms_epsilon", f32(1e-5)),
        ("tokenizer.ggml.model", string("gpt2")),
        ("tokenizer.ggml.tokens", array(8, [text(t) for t in tokens])),
        ("tokenizer.ggml.token_type", array(5, [struct.pack("<i", t) for t in (1, 1, 1, 3)])),
        ("tokenizer.ggml.scores", array(6, [struct.pack("<f", s) for s in (0, -1, -2, 0)])),
        ("tokenizer.ggml.merges", array(8, [text("a b")])),
        ("tokenizer.ggml.eos_token_id", u32(3)),
        ("tokenizer.ggml.add_bos_token", struct.pack("<IB", 7, 0)),
        *more_keys,
    ]
    matrices = {
        "token_embd": 4, "blk.0.attn_q": hidden, "blk.0.attn_k": hidden // 2,
        "blk.0.attn_v": hidden // 2, "blk.0.attn_output": hidden, "blk.0.ffn_gate": hidden,
        "blk.0.ffn_up": hidden, "blk.0.ffn_down": hidden,
    }
    tensors = [(f"{n}.weight", [hidden, r], kind, hidden // block * block_bytes * r)
               for n, r in matrices.items()]
    tensors += [(n, [hidden], 0, 4 * hidden) for n in
                ("output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight")]
    tensors += more_tensors
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    for key, value in keys:
        out += text(key) + value
    data = b""
    for name, shape, type_id, size in tensors:
        out += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type_id, len(data))
        data += bytes(i % 5 for i in range(size))
        data += bytes(-len(data) % 32)
    return out + bytes(-len(out) % 32) + data


def safetensors(config, dtype="F32", size=4, more=()):
    """config.json, generation_config.json, tokenizer_config.json, tokenizer.json, tensors."""
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": [4, 4], "model.norm.weight": [4],
        layer + "input_layernorm.weight": [4], layer + "post_attention_layernorm.weight": [4],
        layer + "self_attn.q_proj.weight": [4, 4], layer + "self_attn.k_proj.weight": [2, 4],
        layer + "self_attn.v_proj.weight": [2, 4], layer + "self_attn.o_proj.weight": [4, 4],
        layer + "mlp.gate_proj.weight": [4, 4], layer + "mlp.up_proj.weight": [4, 4],
        layer + "mlp.down_proj.weight": [4, 4], **dict(more),
    }
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size * count]}
        at += size * count
    head = json.dumps(header, separators=(",", ":")).encode()
    texts = [
        json.dumps(config, separators=(",", ":")),
        '{"eos_token_id":[1,2],"weight_map":{"a":"m.safetensors"}}',
        '{"chat_template":[{"name":"default","template":"T"}]}',
        '{"model":{"vocab":{"a":0}},"post_processor":{"type":"TemplateProcessing",'
        '"single":[{"SpecialToken":{"id":"s"}}],"special_tokens":{"s":{"ids":[0]}}}}',
    ]
    return b"".join(t.encode() + b"\0" for t in texts) + struct.pack("<Q", len(head)) + head + bytes(at)


def main():
    (CORPUS / "gguf").mkdir(parents=True, exist_ok=True)
    (CORPUS / "safetensors").mkdir(parents=True, exist_ok=True)
    (CORPUS / "gguf" / "f32_v3").write_bytes(gguf(3, 8, 0, 1, 4))
    (CORPUS / "gguf" / "f16_v2_rope_freqs").write_bytes(
        gguf(2, 8, 1, 1, 2, [("llama.rope.scaling.type", string("linear")),
                             ("llama.rope.scaling.factor", f32(2))],
             [("rope_freqs.weight", [2], 0, 8)]))
    (CORPUS / "gguf" / "q4_1").write_bytes(gguf(3, 32, 3, 32, 20))
    config = {
        "model_type": "llama", "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 4,
        "max_position_embeddings": 64, "tie_word_embeddings": True, "bos_token_id": 0,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    }
    (CORPUS / "safetensors" / "llama").write_bytes(safetensors(config))
    mistral = {**config, "model_type": "mistral", "sliding_window": 8, "head_dim": 2,
               "tie_word_embeddings": False}
    del mistral["rope_scaling"]
    mistral["rope_parameters"] = {"rope_theta": 1e4, "rope_type": "default"}
    (CORPUS / "safetensors" / "mistral").write_bytes(
        safetensors(mistral, "BF16", 2, [("lm_head.weight", [4, 4])]))


if __name__ == "__main__":
    main()
