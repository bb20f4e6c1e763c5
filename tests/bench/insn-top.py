#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Where a guest kernel's instructions go: sums the addresses that insn_split.so counted (profile=)
# by symbol.
#
#   insn-top.py PROFILE KALLSYMS [COMMANDS]
#
# KALLSYMS is the guest's /proc/kallsyms of the same boot, or of any boot with `nokaslr` whose
# modules were loaded in the same order. With COMMANDS, the sums are divided by it.

import bisect
import collections
import sys


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: insn-top.py PROFILE KALLSYMS [COMMANDS]")
    symbols = []
    with open(sys.argv[2]) as file:
        for line in file:
            address, kind, name = line.split(None, 2)
            if kind in "tTwW":
                symbols.append((int(address, 16), name.strip().replace("\t", " ")))
    symbols.sort()
    starts = [address for address, _ in symbols]
    commands = float(sys.argv[3]) if len(sys.argv) == 4 else 1
    sums = collections.Counter()
    with open(sys.argv[1]) as file:
        for line in file:
            address, count = line.split()
            i = bisect.bisect(starts, int(address, 16)) - 1
            sums[symbols[i][1] if i >= 0 else "?"] += int(count)
    for name, count in sums.most_common():
        print(f"{count / commands:10.1f}  {name}")
    print(f"{sum(sums.values()) / commands:10.1f}  all")


if __name__ == "__main__":
    main()
