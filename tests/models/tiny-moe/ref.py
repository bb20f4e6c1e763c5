#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""numpy-only reference for the TinyMoE fixture (HF MixtralForCausalLM layout).

  ref.py                check reference.json and layer_vectors.safetensors against model.safetensors
  ref.py --h-bf16       same greedy runs with h = silu(w1 x)*(w3 x) rounded to BF16 before w2
  ref.py --x-bf16       ... and/or with the FFN input x rounded to BF16 (router keeps fp32 x)
  ref.py --text "..."   greedy continuation of a prompt (64 bytes)

Weights are the BF16 values widened to fp32; all arithmetic is fp32; KV cache fp32; greedy = argmax,
lowest id on ties.  Tokens are raw bytes; no BOS is put in front of a prompt; positions start at 0.
"""
import json, os, struct, sys
import numpy as np
f32 = np.float32
HERE = os.path.dirname(os.path.abspath(__file__))

def load_safetensors(path):
    with open(path, 'rb') as f: raw = f.read()
    n = struct.unpack('<Q', raw[:8])[0]
    hdr = json.loads(raw[8:8 + n]); out = {}
    for k, v in hdr.items():
        if k == '__metadata__': continue
        a, b = v['data_offsets']; buf = raw[8 + n + a:8 + n + b]
        if v['dtype'] == 'BF16':
            t = (np.frombuffer(buf, '<u2').astype(np.uint32) << 16).view(f32)
        else:
            t = np.frombuffer(buf, {'F32': '<f4', 'I32': '<i4'}[v['dtype']])
        out[k] = t.reshape(v['shape']).copy()
    return out

def save_safetensors(path, tensors, meta=None):
    """tensors: list of (name, dtype tag, ndarray already in storage type)"""
    hdr = {'__metadata__': meta} if meta else {}
    off = 0
    for n, d, t in tensors:
        hdr[n] = {'dtype': d, 'shape': list(t.shape), 'data_offsets': [off, off + t.nbytes]}; off += t.nbytes
    h = json.dumps(hdr, separators=(',', ':')).encode()
    h += b' ' * ((-(8 + len(h))) % 64)
    with open(path, 'wb') as f:
        f.write(struct.pack('<Q', len(h))); f.write(h)
        for n, d, t in tensors: f.write(np.ascontiguousarray(t).tobytes())

def to_bf16(x):
    """round fp32 to BF16 (nearest, ties to even), back as fp32; finite input"""
    u = np.ascontiguousarray(x, f32).view(np.uint32)
    u = (u + np.uint32(0x7fff) + ((u >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xffff0000)
    return u.view(f32)

class Ref:
    def __init__(self, d=HERE, h_bf16=False, x_bf16=False):
        c = json.load(open(os.path.join(d, 'config.json')))
        self.w = load_safetensors(os.path.join(d, 'model.safetensors'))
        self.h_bf16, self.x_bf16 = h_bf16, x_bf16
        self.L, self.D, self.V = c['num_hidden_layers'], c['hidden_size'], c['vocab_size']
        self.H, self.KV = c['num_attention_heads'], c['num_key_value_heads']
        self.E, self.K = c['num_local_experts'], c['num_experts_per_tok']
        self.hd = self.D // self.H; self.eps = f32(c['rms_norm_eps'])
        inv = (1.0 / (f32(c['rope_theta']) ** (np.arange(0, self.hd, 2, dtype=f32) / f32(self.hd)))).astype(f32)
        fr = np.outer(np.arange(c['max_position_embeddings'], dtype=f32), inv).astype(f32)
        e = np.concatenate([fr, fr], 1); self.cos, self.sin = np.cos(e), np.sin(e)
        self.reset()
    def reset(self):
        self.pos = 0; self.k = [[] for _ in range(self.L)]; self.v = [[] for _ in range(self.L)]
    def norm(self, x, w):
        return x * (f32(1) / np.sqrt(np.mean(x * x, dtype=f32) + self.eps)) * w
    def rope(self, x):                       # x [heads, hd]; rotate_half convention
        h = self.hd // 2
        return x * self.cos[self.pos] + np.concatenate([-x[:, h:], x[:, :h]], 1) * self.sin[self.pos]
    def route(self, l, x):
        lg = self.w['model.layers.%d.block_sparse_moe.gate.weight' % l] @ x
        p = np.exp(lg - lg.max()); p /= p.sum(dtype=f32)
        o = np.argsort(-p, kind='stable'); ids = o[:self.K]
        return lg, ids, p[ids] / p[ids].sum(dtype=f32), lg[o[self.K - 1]] - lg[o[self.K]]
    def expert(self, l, e, x, h_bf16):
        q = 'model.layers.%d.block_sparse_moe.experts.%d.' % (l, e)
        a = self.w[q + 'w1.weight'] @ x; b = self.w[q + 'w3.weight'] @ x
        h = a / (f32(1) + np.exp(-a)) * b
        return self.w[q + 'w2.weight'] @ (to_bf16(h) if h_bf16 else h)
    def moe(self, l, x, h_bf16):
        lg, ids, wt, gap = self.route(l, x)
        xe = to_bf16(x) if self.x_bf16 else x
        ys = np.stack([self.expert(l, e, xe, h_bf16) for e in ids])
        out = np.zeros(self.D, f32)
        for j in range(self.K): out += wt[j] * ys[j]
        return out, lg, ids, wt, gap, ys
    def step(self, tok):
        """feed one token; returns logits [V] and per layer (x, router logits, ids, weights, gap)"""
        x = self.w['model.embed_tokens.weight'][tok]; rec = []
        G = self.H // self.KV
        for l in range(self.L):
            p = 'model.layers.%d.' % l
            h = self.norm(x, self.w[p + 'input_layernorm.weight'])
            q = self.rope((self.w[p + 'self_attn.q_proj.weight'] @ h).reshape(self.H, self.hd))
            self.k[l].append(self.rope((self.w[p + 'self_attn.k_proj.weight'] @ h).reshape(self.KV, self.hd)))
            self.v[l].append((self.w[p + 'self_attn.v_proj.weight'] @ h).reshape(self.KV, self.hd))
            k, v = np.stack(self.k[l], 1), np.stack(self.v[l], 1)     # [KV, T, hd]
            o = []
            for i in range(self.H):
                s = (k[i // G] @ q[i]) / np.sqrt(f32(self.hd))
                s = np.exp(s - s.max()); s /= s.sum(dtype=f32)
                o.append(s @ v[i // G])
            x = x + self.w[p + 'self_attn.o_proj.weight'] @ np.concatenate(o)
            h = self.norm(x, self.w[p + 'post_attention_layernorm.weight'])
            m, lg, ids, wt, gap, _ = self.moe(l, h, self.h_bf16)
            rec.append((h, lg, ids, wt, gap))
            x = x + m
        self.pos += 1
        return self.w['lm_head.weight'] @ self.norm(x, self.w['model.norm.weight']), rec
    def greedy(self, prompt, n=64):
        """returns dict: tokens, margins, top5 (all steps), rec per position (prompt + all n generated)"""
        self.reset(); recs = []; toks = []; mar = []; top5 = []
        for t in prompt: lg, r = self.step(t); recs.append(r)
        for i in range(n):
            o = np.argsort(-lg, kind='stable')
            toks.append(int(o[0])); mar.append(float(lg[o[0]] - lg[o[1]]))
            top5.append([(int(j), float(lg[j])) for j in o[:5]])
            lg, r = self.step(toks[-1]); recs.append(r)
        return dict(tokens=toks, margins=mar, top5=top5, rec=recs)

def check(d=HERE, h_bf16=False, x_bf16=False):
    R = Ref(d, h_bf16, x_bf16); J = json.load(open(os.path.join(d, 'reference.json'))); ok = True
    for P in J['prompts']:
        g = R.greedy(P['prompt_bytes'])
        same = g['tokens'] == P['tokens']
        if not same:
            n = [a == b for a, b in zip(g['tokens'], P['tokens'])].index(False); print(P['name'], 'tokens differ from step', n); ok = False; continue
        t5 = all([a for a, _ in g['top5'][i]] == [e['id'] for e in P['top5'][i]] for i in range(len(P['top5'])))
        dl = max(abs(a[1] - e['logit']) for i in range(len(P['top5'])) for a, e in zip(g['top5'][i], P['top5'][i]))
        bad = 0; dw = 0.
        for l in range(R.L):
            Q = P['router'][l]
            for i, r in enumerate(g['rec']):
                if [int(v) for v in r[l][2]] != Q['ids'][i]: bad += 1
                else: dw = max(dw, float(np.abs(r[l][3] - np.array(Q['weights'][i], f32)).max()))
        print('%-8s tokens equal, top-5 ids %s, max |dlogit| %.2e, router rows with other ids/order %d of %d, max |dweight| %.2e, smallest margin %.4f'
              % (P['name'], 'equal' if t5 else 'DIFFER', dl, bad, R.L * len(g['rec']), dw, min(g['margins'])))
        if not (h_bf16 or x_bf16): ok &= t5 and bad == 0
    if not (h_bf16 or x_bf16):
        T = load_safetensors(os.path.join(d, 'layer_vectors.safetensors'))
        for l in (0, 2):
            n = 'layer%d.' % l; e1 = e2 = 0.; idok = True
            for i, x in enumerate(T[n + 'x']):
                m, lg, ids, wt, gap, ys = R.moe(l, x, False); mb = R.moe(l, x, True)[0]
                idok &= list(ids) == list(T[n + 'topk_ids'][i])
                e1 = max(e1, np.abs(m - T[n + 'moe_out'][i]).max()); e2 = max(e2, np.abs(mb - T[n + 'moe_out_h_bf16'][i]).max())
            print('layer %d vectors: ids %s, max |d moe_out| %.2e, max |d moe_out_h_bf16| %.2e' % (l, 'equal' if idok else 'DIFFER', e1, e2))
            ok &= idok and e1 < 1e-5 and e2 < 1e-3
    print('PASS' if ok else 'FAIL'); return ok

if __name__ == '__main__':
    a = sys.argv[1:]
    if '--text' in a:
        p = a[a.index('--text') + 1].encode(); print((p + bytes(Ref().greedy(list(p))['tokens'])).decode('latin-1'))
    else: sys.exit(0 if check(h_bf16='--h-bf16' in a, x_bf16='--x-bf16' in a) else 1)
