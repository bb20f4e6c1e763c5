#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes a small random Mixtral whose shapes fit no tile, and its reference.

  synthetic.py FOLDER [SEED]

hidden 100, expert neurons 36, 7 experts of which 3 a token, 5 heads over 1 key head, a vocabulary
of 61, the embedding shared with the output, two shards with an index. The reference is computed
here in double precision from the BF16 weights, without rounding activations, by code that shares
nothing with ndp-run: only Python's standard library. Prompts are random; those where rounding could
change a choice (a margin or a router gap too small) are passed over.
"""
import json
import math
import os
import random
import struct
import sys
from operator import mul

H, I, LAYERS, HEADS, KV, E, K, VOCAB, POSITIONS = 100, 36, 2, 5, 1, 7, 3, 61, 40
DIM = H // HEADS
EPS, THETA = 1e-6, 5000.0
PROMPTS, NEW = 3, 12
MIN_MARGIN, MIN_GAP = 0.1, 0.01


def bf16(x):
    """The BF16 bits nearest to x, ties to even."""
    bits, = struct.unpack('<I', struct.pack('<f', x))
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16


def widen(bits):
    return struct.unpack('<f', struct.pack('<I', bits << 16))[0]


def dot(a, b):
    return math.fsum(map(mul, a, b))


def times(matrix, x):
    return [dot(row, x) for row in matrix]


def softmax(x):
    top = max(x)
    e = [math.exp(v - top) for v in x]
    total = sum(e)
    return [v / total for v in e]


def best(values, n):
    return sorted(range(len(values)), key=lambda i: (-values[i], i))[:n]


class Model:
    def __init__(self, seed):
        rng = random.Random(seed)
        self.bits = {}
        self.w = {}

        def tensor(name, rows, cols, scale, mean=0.0):
            bits = [[bf16(rng.gauss(mean, scale)) for _ in range(cols)] for _ in range(rows or 1)]
            self.bits[name] = (([rows] if rows else []) + [cols], bits)
            values = [[widen(b) for b in row] for row in bits]
            self.w[name] = values if rows else values[0]

        tensor('model.embed_tokens.weight', VOCAB, H, 2.0 / math.sqrt(H))
        tensor('model.norm.weight', 0, H, 0.1, 1.0)
        for layer in range(LAYERS):
            p = 'model.layers.%d.' % layer
            tensor(p + 'input_layernorm.weight', 0, H, 0.1, 1.0)
            tensor(p + 'post_attention_layernorm.weight', 0, H, 0.1, 1.0)
            for name, rows, cols in (('q', HEADS * DIM, H), ('k', KV * DIM, H),
                                     ('v', KV * DIM, H), ('o', H, HEADS * DIM)):
                tensor(p + 'self_attn.%s_proj.weight' % name, rows, cols, 1 / math.sqrt(cols))
            tensor(p + 'block_sparse_moe.gate.weight', E, H, 1.5 / math.sqrt(H))
            for e in range(E):
                q = p + 'block_sparse_moe.experts.%d.' % e
                tensor(q + 'w1.weight', I, H, 1 / math.sqrt(H))
                tensor(q + 'w3.weight', I, H, 1 / math.sqrt(H))
                tensor(q + 'w2.weight', H, I, 1 / math.sqrt(I))

    def save(self, folder):
        names = sorted(self.bits)
        half = len(names) // 2
        weight_map = {}
        for number, part in enumerate((names[:half], names[half:]), 1):
            file = 'model-%05d-of-00002.safetensors' % number
            header, data = {'__metadata__': {'format': 'pt'}}, bytearray()
            for name in part:
                shape, bits = self.bits[name]
                begin = len(data)
                for row in bits:
                    data += struct.pack('<%dH' % len(row), *row)
                header[name] = {'dtype': 'BF16', 'shape': shape,
                                'data_offsets': [begin, len(data)]}
                weight_map[name] = file
            text = json.dumps(header).encode()
            text += b' ' * (-len(text) % 8)
            with open(os.path.join(folder, file), 'wb') as f:
                f.write(struct.pack('<Q', len(text)) + text + data)
        with open(os.path.join(folder, 'model.safetensors.index.json'), 'w') as f:
            json.dump({'metadata': {}, 'weight_map': weight_map}, f)
        with open(os.path.join(folder, 'config.json'), 'w') as f:
            json.dump({'architectures': ['MixtralForCausalLM'], 'model_type': 'mixtral',
                       'hidden_act': 'silu', 'hidden_size': H, 'intermediate_size': I,
                       'num_hidden_layers': LAYERS, 'num_attention_heads': HEADS,
                       'num_key_value_heads': KV, 'num_local_experts': E,
                       'num_experts_per_tok': K, 'vocab_size': VOCAB,
                       'max_position_embeddings': POSITIONS, 'rms_norm_eps': EPS,
                       'rope_theta': THETA, 'sliding_window': None,
                       'tie_word_embeddings': True, 'torch_dtype': 'bfloat16'}, f)

    def norm(self, x, name):
        scale = 1 / math.sqrt(dot(x, x) / H + EPS)
        return [v * scale * w for v, w in zip(x, self.w[name])]

    @staticmethod
    def rope(x, pos):
        out = list(x)
        for head in range(0, len(x), DIM):
            for i in range(DIM // 2):
                angle = pos / THETA ** (2 * i / DIM)
                a, b = x[head + i], x[head + i + DIM // 2]
                out[head + i] = a * math.cos(angle) - b * math.sin(angle)
                out[head + i + DIM // 2] = b * math.cos(angle) + a * math.sin(angle)
        return out

    def attention(self, x, p, cache, pos):
        q = self.rope(times(self.w[p + 'self_attn.q_proj.weight'], x), pos)
        cache.append((self.rope(times(self.w[p + 'self_attn.k_proj.weight'], x), pos),
                      times(self.w[p + 'self_attn.v_proj.weight'], x)))
        out = []
        for head in range(HEADS):
            kv = head // (HEADS // KV) * DIM
            mine = q[head * DIM:(head + 1) * DIM]
            s = softmax([dot(mine, k[kv:kv + DIM]) / math.sqrt(DIM) for k, _ in cache])
            out += [sum(w * v[kv + i] for w, (_, v) in zip(s, cache)) for i in range(DIM)]
        return times(self.w[p + 'self_attn.o_proj.weight'], out)

    def experts(self, x, p):
        logits = times(self.w[p + 'block_sparse_moe.gate.weight'], x)
        order = best(logits, E)
        self.gap = min(self.gap, logits[order[K - 1]] - logits[order[K]])
        out = [0.0] * H
        for e, weight in zip(order, softmax([logits[e] for e in order[:K]])):
            q = p + 'block_sparse_moe.experts.%d.' % e
            gate, up = times(self.w[q + 'w1.weight'], x), times(self.w[q + 'w3.weight'], x)
            h = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)]
            out = [o + weight * y for o, y in zip(out, times(self.w[q + 'w2.weight'], h))]
        return out

    def step(self, token, caches, pos):
        x = list(self.w['model.embed_tokens.weight'][token])
        for layer, cache in enumerate(caches):
            p = 'model.layers.%d.' % layer
            y = self.attention(self.norm(x, p + 'input_layernorm.weight'), p, cache, pos)
            x = [a + b for a, b in zip(x, y)]
            y = self.experts(self.norm(x, p + 'post_attention_layernorm.weight'), p)
            x = [a + b for a, b in zip(x, y)]
        return times(self.w['model.embed_tokens.weight'], self.norm(x, 'model.norm.weight'))

    def greedy(self, prompt):
        """tokens, top five of each step; None when rounding could change a choice"""
        self.gap = math.inf
        caches = [[] for _ in range(LAYERS)]
        tokens, top5 = [], []
        fed = list(prompt)
        for pos in range(len(prompt) + NEW - 1):
            logits = self.step(fed[pos], caches, pos)
            if self.gap < MIN_GAP:
                return None
            if pos < len(prompt) - 1:
                continue
            order = best(logits, 5)
            if logits[order[0]] - logits[order[1]] < MIN_MARGIN:
                return None
            tokens.append(order[0])
            fed.append(order[0])
            top5.append([{'id': i, 'logit': logits[i]} for i in order])
        return tokens, top5


def main(folder, seed=1):
    os.makedirs(folder, exist_ok=True)
    model = Model(seed)
    model.save(folder)
    rng = random.Random(seed + 1)
    prompts = []
    while len(prompts) < PROMPTS:
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 12))]
        found = model.greedy(prompt)
        if found:
            prompts.append({'name': 'random%d' % len(prompts), 'prompt_bytes': prompt,
                            'tokens': found[0], 'top5': found[1]})
    with open(os.path.join(folder, 'reference.json'), 'w') as f:
        json.dump({'model': 'synthetic.py, seed %d' % seed, 'prompts': prompts}, f)


if __name__ == '__main__':
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(sys.argv[1], *map(int, sys.argv[2:]))
