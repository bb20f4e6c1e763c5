#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Bar F.3: FFN throughput in a guest, through driver and device, against the same chip in a process
# of the host. Both run bench_ffn --serve; this program lets them take turns, so that whatever else
# the machine does hits both, and neither ever runs while the other is measured.
#
#   bench-vm.py [--kernel 6.1] [--dimms 2] [--pairs 9] [--seconds 1] [--tokens 1,8]
#
# A pair is one round in the guest and one on the host, the first one changing from pair to pair.
# Each round passes over the whole working set (32 experts of 17.3 MB; one worker a DIMM on both
# sides), in 4 KiB pages on both sides: QEMU's memory would get huge ones, memory that processes may
# share, as the in-process chip's, usually does not. Rounds are timed here, with the host's clock; the
# value is the median of the pairs' ratios. The digests of the results must agree between guest and
# host. The line "tokens L io" adds what an application does for each command, writing x and adding
# up y (see bench_ffn.c); it is not the bar. It must never compare different work, and it changes
# nothing on the machine.

import argparse
import ctypes
import os
import signal
import socket
import statistics
import subprocess
import sys
import time

TOP = os.path.realpath(os.path.join(os.path.dirname(os.path.realpath(__file__)), "../.."))
BUILD = os.environ.get("NDP_BUILD", os.path.join(TOP, "build"))
GOAL = 0.70
IO_PAIRS = 5
DIMM_SIZE = "512M"

GUEST_SCRIPT = """\
insmod /payload/moendp.ko || exit
stty -F /dev/ttyS3 raw -echo || exit
bench_ffn --device /dev/ndp0 --serve --seconds {seconds} </dev/ttyS3 >/dev/ttyS3
"""


PR_SET_THP_DISABLE = 41  # linux/prctl.h


class BenchError(Exception):
    pass


def small_pages():
    """In the child, before it becomes another program, which inherits this."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_THP_DISABLE)")


class Side:
    """One bench_ffn --serve, behind two byte streams."""

    def __init__(self, name, reader, writer):
        self.name = name
        self.reader = reader
        self.writer = writer

    def line(self, word):
        """The words after WORD in the next line that begins with it."""
        for raw in self.reader:
            words = raw.decode(errors="replace").split()
            if words and words[0] == word:
                return words[1:]
        raise BenchError(f"the bench on the {self.name} ended early (see its messages above)")

    def round(self, what):
        """WHAT: "TOKENS" or "TOKENS io".  Commands a second by our clock, the digest of the results, their clock / ours."""
        self.writer.write(f"round {what}\n".encode())
        self.writer.flush()
        self.line("go")
        start = time.monotonic()
        _, commands, own_ns = self.line("round")
        seconds = time.monotonic() - start
        check = self.line("check")[1]
        return int(commands) / seconds, check, int(own_ns) * 1e-9 / seconds

    def end(self):
        self.writer.write(b"end\n")
        self.writer.flush()


def start_host(args):
    process = subprocess.Popen(
        [os.path.join(BUILD, "bench/bench_ffn"), "--serve", "--seconds", str(args.seconds),
         "--device", f"soft:dimms={args.dimms},size={DIMM_SIZE}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        preexec_fn=small_pages)
    return process, Side("host", process.stdout, process.stdin)


def start_guest(args):
    name = f"bench-ffn-{args.kernel}"
    script = os.path.join(BUILD, "bench", name + ".sh")
    turns = os.path.join(BUILD, "bench", name + ".sock")
    with open(script, "w") as file:
        file.write(GUEST_SCRIPT.format(seconds=args.seconds))
    if os.path.exists(turns):
        os.unlink(turns)
    process = subprocess.Popen(
        [os.path.join(TOP, "tests/vm/run-vm.sh"), "--name", name, "--kernel", args.kernel,
         "--script", script, "--dimms", str(args.dimms), "--dimm-size", DIMM_SIZE,
         "--timeout", "1200", "--file", os.path.join(BUILD, "bench/bench_ffn"), "--",
         "-chardev", f"socket,id=turns,path={turns},server=on,wait=off",
         "-device", "isa-serial,chardev=turns,index=3,irq=7"],
        stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True,
        preexec_fn=small_pages)
    sock = socket.socket(socket.AF_UNIX)
    while True:
        try:
            sock.connect(turns)
            break
        except OSError:
            if process.poll() is not None:
                raise BenchError("the guest did not start (see above)") from None
            time.sleep(0.1)
    return process, Side("guest", sock.makefile("rb"), sock.makefile("wb"))


def compare(guest, host, what, pairs):
    """The median of the pairs' ratios; prints what it is made of."""
    ratios, rates = [], {guest: [], host: []}
    for side in (guest, host):
        side.round(what)
    for pair in range(pairs):
        order = (guest, host) if pair % 2 else (host, guest)
        results = {side: side.round(what) for side in order}
        if results[guest][1] != results[host][1]:
            raise BenchError(f"the guest's results differ from the host's (round {what})")
        clock = results[guest][2]
        if not 0.95 < clock < 1.05:
            print(f"# the guest's clock ran at {clock:.2f} of the host's (which is what counts)")
        for side in order:
            rates[side].append(results[side][0])
        ratios.append(results[guest][0] / results[host][0])
    value = statistics.median(ratios)
    print(f"# tokens {what}: guest {statistics.median(rates[guest]):.0f} commands a second of wall"
          f" time, host {statistics.median(rates[host]):.0f} (medians of {pairs}); ratio"
          f" {value:.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)
    return value


def measure(guest, host, tokens, pairs):
    """Prints the bar; returns whether it holds."""
    value = compare(guest, host, str(tokens), pairs)
    compare(guest, host, f"{tokens} io", min(pairs, IO_PAIRS))
    passed = value >= GOAL
    print(f"bar F.3 vm-throughput-{tokens}tok value={value:.2f} goal=>={GOAL:.2f}"
          f" {'pass' if passed else 'fail'}", flush=True)
    return passed


def main():
    parser = argparse.ArgumentParser(description="bar F.3: FFN throughput, guest against host")
    parser.add_argument("--kernel", default="6.1")
    parser.add_argument("--dimms", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--tokens", default="1,8")
    args = parser.parse_args()

    processes = []
    passed = False
    try:
        guest_process, guest = start_guest(args)
        processes.append(guest_process)
        host_process, host = start_host(args)
        processes.append(host_process)
        host.line("ready")
        guest.line("ready")
        passed = all([measure(guest, host, int(tokens), args.pairs)
                      for tokens in args.tokens.split(",")])
        host.end()
        guest.end()
        if host_process.wait() or guest_process.wait():
            raise BenchError("a side did not end well (see above)")
    except (BenchError, OSError, ValueError) as error:
        print(f"bench-vm: {error}", file=sys.stderr)
        passed = False
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # QEMU is in the guest's group
                process.wait()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
