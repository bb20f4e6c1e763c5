#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Damages a copy of a Mixtral model, to show that a check notices.

  mutate.py SRC DST zero-block LAYER EXPERT BLOCK   the 32 neurons of a block become zero
  mutate.py SRC DST swap LAYER EXPERT EXPERT        two experts change places
  mutate.py SRC DST set-dtype TENSOR DTYPE          the header says another type
  mutate.py SRC DST rename TENSOR NAME              a tensor has another name
  mutate.py SRC DST add TENSOR                      there is a further tensor, an empty one
  mutate.py SRC DST truncate BYTES                  the file ends so much earlier
  mutate.py SRC used                                experts by use: "layer expert", most used
                                                    of each layer first, of reference.json

SRC and DST are folders with model.safetensors; everything else of SRC is linked.
"""
import json
import os
import struct
import sys

BLOCK = 32


class Model:
    def __init__(self, folder):
        with open(os.path.join(folder, 'model.safetensors'), 'rb') as f:
            self.raw = bytearray(f.read())
        n, = struct.unpack('<Q', self.raw[:8])
        self.header = json.loads(self.raw[8:8 + n])
        self.data = self.raw[8 + n:]

    def save(self, folder, cut=0):
        text = json.dumps(self.header).encode()
        text += b' ' * (-len(text) % 8)
        out = struct.pack('<Q', len(text)) + text + self.data
        with open(os.path.join(folder, 'model.safetensors'), 'wb') as f:
            f.write(out[:len(out) - cut])

    def expert(self, layer, expert, which):
        return self.header['model.layers.%d.block_sparse_moe.experts.%d.%s.weight'
                           % (layer, expert, which)]

    def zero_rows(self, tensor, first, count):
        cols = tensor['shape'][1]
        begin = tensor['data_offsets'][0] + 2 * first * cols
        self.data[begin:begin + 2 * count * cols] = bytes(2 * count * cols)

    def zero_cols(self, tensor, first, count):
        rows, cols = tensor['shape']
        for row in range(rows):
            begin = tensor['data_offsets'][0] + 2 * (row * cols + first)
            self.data[begin:begin + 2 * count] = bytes(2 * count)

    def zero_block(self, layer, expert, block):
        first = BLOCK * block
        count = min(BLOCK, self.expert(layer, expert, 'w1')['shape'][0] - first)
        if count <= 0:
            sys.exit('mutate.py: there is no block %d' % block)
        self.zero_rows(self.expert(layer, expert, 'w1'), first, count)
        self.zero_rows(self.expert(layer, expert, 'w3'), first, count)
        self.zero_cols(self.expert(layer, expert, 'w2'), first, count)

    def swap(self, layer, a, b):
        for which in ('w1', 'w2', 'w3'):
            x, y = self.expert(layer, a, which), self.expert(layer, b, which)
            x['data_offsets'], y['data_offsets'] = y['data_offsets'], x['data_offsets']


def used(folder):
    with open(os.path.join(folder, 'reference.json')) as f:
        reference = json.load(f)
    layers = {}
    for prompt in reference['prompts']:
        for entry in prompt['router']:
            weights = layers.setdefault(entry['layer'], {})
            for ids, row in zip(entry['ids'], entry['weights']):
                for expert, weight in zip(ids, row):
                    weights[expert] = weights.get(expert, 0) + weight
    for layer, weights in sorted(layers.items()):
        for expert in sorted(weights, key=weights.get, reverse=True):
            print(layer, expert)


def main(argv):
    src = argv[0]
    if argv[1:] == ['used']:
        used(src)
        return
    dst, what, args = argv[1], argv[2], argv[3:]
    model = Model(src)
    os.makedirs(dst, exist_ok=True)
    for name in os.listdir(src):
        if name != 'model.safetensors' and not os.path.lexists(os.path.join(dst, name)):
            os.symlink(os.path.abspath(os.path.join(src, name)), os.path.join(dst, name))
    cut = 0
    if what == 'zero-block':
        model.zero_block(*map(int, args))
    elif what == 'swap':
        model.swap(*map(int, args))
    elif what == 'set-dtype':
        model.header[args[0]]['dtype'] = args[1]
    elif what == 'rename':
        model.header[args[1]] = model.header.pop(args[0])
    elif what == 'add':
        model.header[args[0]] = {'dtype': 'BF16', 'shape': [0], 'data_offsets': [0, 0]}
    elif what == 'truncate':
        cut = int(args[0])
    else:
        sys.exit(__doc__)
    model.save(dst, cut)


if __name__ == '__main__':
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1:])
