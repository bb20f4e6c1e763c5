#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes a Mixtral in safetensors (BF16) as one GGUF file, all of it.

    gguf.py MODEL_DIR OUT.gguf [+KEY | -TENSOR | =ARCHITECTURE]...

+KEY adds an integer of that name, -TENSOR leaves one out, =ARCHITECTURE is another name for it: for
tests of what must be refused.

Matrices stay BF16, norms become FP32; experts are stacked. Names and keys: gguf-py/gguf/constants.py
of llama.cpp; rows of q and k are in the order that its convert_hf_to_gguf.py gives them.
"""
import json
import struct
import sys

F32, BF16 = 0, 30
U32, FLOAT, STRING = 4, 6, 8
ALIGNMENT = 32


def read(folder):
    with open(f"{folder}/model.safetensors", "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        data = f.read()
    tensors = {}
    for name, t in header.items():
        if name != "__metadata__":
            assert t["dtype"] == "BF16", name
            begin, end = t["data_offsets"]
            tensors[name] = (t["shape"], data[begin:end])
    return tensors


def widened(data):
    return b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))


def permuted(shape, data, heads):
    """Of the two halves of a head's rows, one of each in turn."""
    rows, cols = shape
    half, row = rows // heads // 2, 2 * cols
    order = [h * 2 * half + j * half + i
             for h in range(heads) for i in range(half) for j in range(2)]
    return b"".join(data[r * row:(r + 1) * row] for r in order)


def convert(config, tensors):
    out = {}

    def put(name, source, change=None):
        shape, data = tensors.pop(source)
        if len(shape) == 1:
            out[name] = (F32, shape, widened(data))
        else:
            out[name] = (BF16, shape, change(shape, data) if change else data)

    put("token_embd.weight", "model.embed_tokens.weight")
    put("output_norm.weight", "model.norm.weight")
    put("output.weight", "lm_head.weight")
    for l in range(config["num_hidden_layers"]):
        theirs, ours = f"model.layers.{l}.", f"blk.{l}."
        put(ours + "attn_norm.weight", theirs + "input_layernorm.weight")
        put(ours + "ffn_norm.weight", theirs + "post_attention_layernorm.weight")
        for name, heads in ("q", "num_attention_heads"), ("k", "num_key_value_heads"):
            put(ours + f"attn_{name}.weight", theirs + f"self_attn.{name}_proj.weight",
                lambda s, d, n=config[heads]: permuted(s, d, n))
        put(ours + "attn_v.weight", theirs + "self_attn.v_proj.weight")
        put(ours + "attn_output.weight", theirs + "self_attn.o_proj.weight")
        put(ours + "ffn_gate_inp.weight", theirs + "block_sparse_moe.gate.weight")
        for name, which in ("gate", "w1"), ("up", "w3"), ("down", "w2"):
            parts = [tensors.pop(f"{theirs}block_sparse_moe.experts.{e}.{which}.weight")
                     for e in range(config["num_local_experts"])]
            out[ours + f"ffn_{name}_exps.weight"] = (
                BF16, [len(parts)] + parts[0][0], b"".join(p[1] for p in parts))
    assert not tensors, sorted(tensors)
    return out


def string(s):
    return struct.pack("<Q", len(s)) + s.encode()


def pairs(config, changes):
    names = [c[1:] for c in changes if c[0] == "="]
    yield "general.architecture", STRING, string(names[0] if names else "llama")
    for change in changes:
        if change[0] == "+":
            yield change[1:], U32, struct.pack("<I", 1)
    yield "general.name", STRING, string("made for tests")
    for key, name in (("context_length", "max_position_embeddings"),
                      ("embedding_length", "hidden_size"),
                      ("block_count", "num_hidden_layers"),
                      ("feed_forward_length", "intermediate_size"),
                      ("attention.head_count", "num_attention_heads"),
                      ("attention.head_count_kv", "num_key_value_heads"),
                      ("expert_count", "num_local_experts"),
                      ("expert_used_count", "num_experts_per_tok"),
                      ("vocab_size", "vocab_size")):
        yield f"llama.{key}", U32, struct.pack("<I", config[name])
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    yield "llama.rope.dimension_count", U32, struct.pack("<I", head_dim)
    yield "llama.rope.freq_base", FLOAT, struct.pack("<f", config["rope_theta"])
    yield ("llama.attention.layer_norm_rms_epsilon", FLOAT,
           struct.pack("<f", config["rms_norm_eps"]))
    if config.get("eos_token_id") is not None:
        yield "tokenizer.ggml.eos_token_id", U32, struct.pack("<I", config["eos_token_id"])


def write(path, keys, tensors):
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for key, kind, value in keys:
        head += string(key) + struct.pack("<I", kind) + value
    offset = 0
    for name, (kind, shape, data) in tensors.items():
        head += string(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", n) for n in reversed(shape))
        head += struct.pack("<IQ", kind, offset)
        offset += -(-len(data) // ALIGNMENT) * ALIGNMENT
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % ALIGNMENT))
        for _, _, data in tensors.values():
            f.write(data + b"\0" * (-len(data) % ALIGNMENT))


def main():
    folder, path, *changes = sys.argv[1:]
    with open(f"{folder}/config.json", encoding="utf-8") as f:
        config = json.load(f)
    tensors = convert(config, read(folder))
    for change in changes:
        if change[0] == "-":
            del tensors[change[1:]]
    write(path, list(pairs(config, changes)), tensors)


main()
