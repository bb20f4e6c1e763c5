#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes the files from which the fuzz targets start: seeds.py TARGET FOLDER.

Small good files that between them have every feature of the formats, and a few that are
wrong in a way that is far from all good ones.
"""

import json
import os
import struct
import sys

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B",
           U64: "Q", I64: "q", F64: "d"}
# number: elements and bytes of a block (test_gguf.c has where they come from)
GGML = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 14: (256, 210), 24: (1, 1), 30: (1, 2),
        39: (32, 17)}


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, v):
    if kind == STRING:
        return string(v)
    if kind == ARRAY:
        inner, items = v
        return struct.pack("<IQ", inner, len(items)) + b"".join(value(inner, i) for i in items)
    return struct.pack("<" + FORMATS[kind], v)


def gguf(keys, tensors, version=3, alignment=32):
    """keys: (name, type, value); tensors: (name, dims innermost first, ggml type)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    for name, kind, v in keys:
        head += string(name) + struct.pack("<I", kind) + value(kind, v)
    data = b""
    for name, dims, kind in tensors:
        elements = 1
        for d in dims:
            elements *= d
        block, size = GGML[kind]
        head += string(name) + struct.pack("<I", len(dims))
        head += b"".join(struct.pack("<Q", d) for d in dims)
        head += struct.pack("<IQ", kind, len(data))
        n = elements // block * size
        data += bytes(i * 37 % 251 for i in range(n)) + bytes(-n % alignment)
    return head + bytes(-len(head) % alignment) + data


def gguf_seeds():
    yield gguf([], [])
    yield gguf([("general.architecture", STRING, "llama")], [("a", [3, 2], 0), ("b", [4], 30)])
    yield gguf([("general.alignment", U32, 64)], [("a", [8], 24), ("b", [], 0)], 2, 64)
    yield gguf([("k%d" % kind, kind, 1) for kind in FORMATS], [])
    yield gguf([("a%d" % kind, ARRAY, (kind, [1, 0, 1])) for kind in FORMATS], [])
    yield gguf([("tokens", ARRAY, (STRING, ["t%d" % i for i in range(130)]))], [("t", [1], 1)])
    yield gguf([("nested", ARRAY, (ARRAY, [(U8, [1, 2]), (ARRAY, [(STRING, ["x"])])]))], [])
    yield gguf([("split.no", U16, 0), ("split.count", U16, 2), ("split.tensors.count", I32, 3)],
               [("blk.0.ffn_up_exps.weight", [32, 2, 2], 8)])
    yield gguf([("general.quantization_version", U32, 2)],
               [("q4", [64], 2), ("q8", [32, 3], 8), ("mx", [32, 1, 2], 39), ("f16", [7], 1),
                ("q6", [256], 14), ("four", [1, 2, 3, 4], 24)])
    yield gguf([], [("a", [4], 0)])[:-20]


def safetensors(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def safetensors_seeds():
    sizes = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1, "BOOL": 1, "I64": 8, "F8_E4M3": 1}
    yield safetensors({}, b"")
    yield safetensors(b'{"__metadata__":{"format":"pt"}}   ', b"")
    header, at = {}, 0
    for i, (dtype, size) in enumerate(sizes.items()):
        shape = [[2, 3], [6], [1, 2, 3], [6, 1], [2, 1, 3], [3, 2], [1, 1, 1, 1, 1, 1, 1, 6]][i]
        header[f"model.layers.{i}.weight"] = {"dtype": dtype, "shape": shape,
                                              "data_offsets": [at, at + 6 * size]}
        at += 6 * size
    yield safetensors(header, bytes(range(at)))
    yield safetensors({"scalar": {"dtype": "F16", "shape": [], "data_offsets": [0, 2]},
                       "none": {"dtype": "F32", "shape": [3, 0], "data_offsets": [2, 2]},
                       "last": {"dtype": "U8", "shape": [1], "data_offsets": [2, 3]}}, b"\0<\1")
    yield safetensors({"a": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}}, b"short")
    yield safetensors(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":1}', b"\0" * 4)
    yield safetensors(b"{" + b"[" * 3000, b"")


def model_seeds():
    """Two experts of the families that differ most, H = 8, I = 4 (32 where in blocks)."""
    h, i, e = 8, 4, 2

    def files(config, shapes):
        header, at = {}, 0
        for name, (dtype, shape) in shapes.items():
            n = {"BF16": 2, "F32": 4, "U8": 1}[dtype]
            for d in shape:
                n *= d
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
            at += n
        text = json.dumps(config).encode()
        return (b"MODL" + struct.pack("<I", len(text)) + text +
                safetensors(header, bytes(k * 37 % 251 for k in range(at))))

    def each(prefix, gate, up, down):
        return {f"{prefix}.{k}.{name}.weight": ("BF16", [h, i] if name == down else [i, h])
                for k in range(e) for name in (gate, up, down)}

    layer = "model.layers.0."
    sizes = {"num_hidden_layers": 1, "hidden_size": h, "num_experts_per_tok": 1,
             "hidden_act": "silu"}
    router = {layer + "mlp.gate.weight": ("BF16", [e, h])}
    shared = {layer + f"mlp.shared_expert{{}}.{n}_proj.weight": [h, i] if n == "down" else [i, h]
              for n in ("gate", "up", "down")}
    yield files({**sizes, "model_type": "mixtral", "intermediate_size": i,
                 "num_local_experts": e},
                {layer + "block_sparse_moe.gate.weight": ("F32", [e, h]),
                 **each(layer + "block_sparse_moe.experts", "w1", "w3", "w2")})
    yield files({**sizes, "model_type": "qwen3_moe", "moe_intermediate_size": i,
                 "num_experts": e, "norm_topk_prob": True},
                {**router, layer + "mlp.experts.gate_up_proj": ("F32", [e, 2 * i, h]),
                 layer + "mlp.experts.down_proj": ("F32", [e, h, i])})
    yield files({**sizes, "model_type": "qwen2_moe", "moe_intermediate_size": i,
                 "num_experts": e, "shared_expert_intermediate_size": i},
                {**router, **each(layer + "mlp.experts", "gate_proj", "up_proj", "down_proj"),
                 **{k.format(""): ("BF16", v) for k, v in shared.items()},
                 layer + "mlp.shared_expert_gate.weight": ("BF16", [1, h])})
    yield files({**sizes, "model_type": "deepseek_v3", "moe_intermediate_size": i,
                 "n_routed_experts": e, "n_shared_experts": 1, "n_group": 2, "topk_group": 1,
                 "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
                 "topk_method": "noaux_tc", "first_k_dense_replace": 0},
                {**router, layer + "mlp.gate.e_score_correction_bias": ("F32", [e]),
                 **each(layer + "mlp.experts", "gate_proj", "up_proj", "down_proj"),
                 **{k.format("s"): ("BF16", v) for k, v in shared.items()}})
    oss = {**sizes, "model_type": "gpt_oss", "num_local_experts": e, "swiglu_limit": 7.0}
    biases = {layer + "mlp.router.weight": ("BF16", [e, h]),
              layer + "mlp.router.bias": ("BF16", [e]),
              layer + "mlp.experts.gate_up_proj_bias": ("BF16", [e, 2 * i]),
              layer + "mlp.experts.down_proj_bias": ("BF16", [e, h])}
    yield files({**oss, "intermediate_size": i},
                {**biases, layer + "mlp.experts.gate_up_proj": ("BF16", [e, h, 2 * i]),
                 layer + "mlp.experts.down_proj": ("BF16", [e, i, h])})
    w = 32
    yield files({**oss, "intermediate_size": w, "hidden_size": w, "num_local_experts": 1},
                {layer + "mlp.router.weight": ("BF16", [1, w]),
                 layer + "mlp.router.bias": ("BF16", [1]),
                 layer + "mlp.experts.gate_up_proj_bias": ("BF16", [1, 2 * w]),
                 layer + "mlp.experts.down_proj_bias": ("BF16", [1, w]),
                 layer + "mlp.experts.gate_up_proj_blocks": ("U8", [1, 2 * w, 1, 16]),
                 layer + "mlp.experts.gate_up_proj_scales": ("U8", [1, 2 * w, 1]),
                 layer + "mlp.experts.down_proj_blocks": ("U8", [1, w, 1, 16]),
                 layer + "mlp.experts.down_proj_scales": ("U8", [1, w, 1])})

    def keys(arch, **more):
        numbers = {"block_count": 1, "embedding_length": 32, "expert_count": 1,
                   "expert_used_count": 1, **more}
        return ([("general.architecture", STRING, arch)] +
                [(f"{arch}.{k}", F32 if isinstance(v, float) else U32, v)
                 for k, v in numbers.items()])

    def blocks(kind, **more):
        return ([("blk.0.ffn_gate_inp.weight", [32, 1], 0)] +
                [(f"blk.0.ffn_{n}_exps.weight", [32, 32, 1], kind) for n in
                 ("gate", "up", "down")] + [(f"blk.0.{n}", d, 0) for n, d in more.items()])

    yield gguf(keys("llama", feed_forward_length=32), blocks(2))
    yield gguf(keys("qwen3moe", expert_feed_forward_length=32), blocks(39))
    yield gguf(keys("deepseek2", expert_feed_forward_length=32, expert_weights_scale=2.5,
                    leading_dense_block_count=0, expert_gating_func=2),
               blocks(8, **{"exp_probs_b.bias": [1]}))


def main():
    target, folder = sys.argv[1:]
    seeds = {"gguf": gguf_seeds, "safetensors": safetensors_seeds, "model": model_seeds}[target]
    os.makedirs(folder, exist_ok=True)
    for i, seed in enumerate(seeds()):
        with open(os.path.join(folder, f"seed-{i:02}"), "wb") as f:
            f.write(seed)


main()
