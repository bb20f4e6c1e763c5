#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
#
# The host's side of one test guest: starts QEMU, passes on what the guest's script prints, does
# what the guest asks for (unplug, plug, set a property), and judges the end.
#
# A run is good only if the script's end marker came with status 0 and the kernel printed nothing
# that a kernel developer would call a bug. It must never end by luck: no marker, a time-out, QEMU
# dying or one warning are failures. Used by run-vm.sh; plain Python standard library.
#
# QMP: QEMU's docs/interop/qmp-spec.rst. The guest's requests: tests/vm/guest-host.sh.

import argparse
import json
import os
import re
import selectors
import socket
import subprocess
import sys
import threading
import time

# What makes a run fail when the kernel prints it.
KERNEL_TROUBLE = re.compile(
    r"""\bBUG\b|WARNING:|\bOops\b|KASAN|KCSAN|UBSAN|general\ protection|Call\ Trace:|
    Kernel\ panic|possible\ (recursive|circular|irq)|INFO:\ task\ .*\ blocked|
    suspicious\ RCU|inconsistent\ lock|INFO:\ possible|rcu:.*(stall|detected)|soft\ lockup|
    hard\ LOCKUP|unreferenced\ object|new\ suspected\ memory\ leaks|refcount_t:|
    DEBUG_LOCKS_WARN|nobody\ cared|bad\ page|Bad\ page|list_(add|del)\ corruption|
    ODEBUG:|sysfs:\ cannot\ create|Out\ of\ memory:|page\ allocation\ failure|
    scheduling\ while\ atomic|sleeping\ function\ called|segfault\ at""",
    re.VERBOSE)

END_MARKER = re.compile(r"^@@end (\d+)$")


class QmpError(Exception):
    pass


class Qmp:
    """A QMP connection. One user at a time: requests come from one thread."""

    def __init__(self, path):
        deadline = time.monotonic() + 30
        self.sock = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self.sock.connect(path)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        self.pending = b""
        self.events = []
        self._read(30)
        self.command("qmp_capabilities")

    def _read(self, seconds=None):
        """The next message; TimeoutError if none comes within SECONDS."""
        self.sock.settimeout(seconds)
        while b"\n" not in self.pending:
            chunk = self.sock.recv(65536)
            if not chunk:
                raise QmpError("QEMU closed the connection")
            self.pending += chunk
        line, self.pending = self.pending.split(b"\n", 1)
        return json.loads(line)

    def command(self, name, **arguments):
        self.sock.settimeout(None)
        self.sock.sendall(json.dumps({"execute": name, "arguments": arguments}).encode() + b"\n")
        while True:
            message = self._read()
            if "event" in message:
                self.events.append(message)
            elif "error" in message:
                raise QmpError(message["error"]["desc"])
            else:
                return message["return"]

    def wait_event(self, name, device, seconds):
        """The event NAME of DEVICE, which may have come before."""
        deadline = time.monotonic() + seconds
        while True:
            for event in self.events:
                if event["event"] == name and event.get("data", {}).get("device") == device:
                    self.events.remove(event)
                    return
            try:
                self.events.append(self._read(max(deadline - time.monotonic(), 0.001)))
            except TimeoutError:
                raise QmpError(f"no {name} of {device} within {seconds} s") from None


def typed(text):
    """The JSON value of a property written as on QEMU's command line."""
    if text in ("on", "off"):
        return text == "on"
    try:
        return json.loads(text)
    except ValueError:
        return text


class Host:
    """Answers the requests of the guest."""

    UNPLUG_SECONDS = 60

    def __init__(self, qmp, dimms):
        self.qmp = qmp
        self.dimms = dimms

    def answer(self, line):
        words = line.split(None, 1)
        rest = words[1] if len(words) > 1 else ""
        action = getattr(self, "do_" + words[0], None) if words else None
        if not action:
            return f"error no such request: {line}"
        try:
            result = action(rest)
        except (QmpError, ValueError, KeyError, IndexError) as error:
            return "error " + str(error).replace("\n", " ")
        if result is None or result == {}:
            return "ok"
        return "ok " + (result if isinstance(result, str) else json.dumps(result))

    def _dimm(self, name):
        if name not in self.dimms:
            raise QmpError(f"no DIMM {name} in this guest; there are {', '.join(self.dimms)}")
        return self.dimms[name]

    def do_unplug(self, rest):
        dimm = self._dimm(rest.strip())
        self.qmp.command("device_del", id=dimm["device"]["id"])
        self.qmp.wait_event("DEVICE_DELETED", dimm["device"]["id"], self.UNPLUG_SECONDS)
        self.qmp.command("object-del", id=dimm["memory"]["id"])

    def do_plug(self, rest):
        words = rest.split()
        dimm = self._dimm(words[0])
        changed = dict(word.split("=", 1) for word in words[1:])
        device = {**dimm["device"], **{key: typed(value) for key, value in changed.items()}}
        self.qmp.command("object-add", **dimm["memory"])
        try:
            self.qmp.command("device_add", **device)
        except QmpError:
            self.qmp.command("object-del", id=dimm["memory"]["id"])
            raise

    def do_set(self, rest):
        name, prop, value = rest.split(None, 2)
        self.qmp.command("qom-set", path=f"/machine/peripheral/{name}", property=prop,
                         value=typed(value))

    def do_get(self, rest):
        name, prop = rest.split()
        return self.qmp.command("qom-get", path=f"/machine/peripheral/{name}", property=prop)

    def do_qmp(self, rest):
        name, _, arguments = rest.partition(" ")
        return self.qmp.command(name, **(json.loads(arguments) if arguments else {}))


def serve_requests(path, host):
    """The guest's ttyS2. Lines that are not requests (boot noise) are left alone."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    file = sock.makefile("rw", errors="replace", newline="\n")
    for line in file:
        line = line.strip()
        if line.startswith("@@host: "):
            file.write(host.answer(line[len("@@host: "):]) + "\n")
            file.flush()


def pump(qemu, seconds, out):
    """Copies the guest's lines to OUT; returns (status of the script or None, timed out?)."""
    status = None
    deadline = time.monotonic() + seconds
    selector = selectors.DefaultSelector()
    selector.register(qemu.stdout, selectors.EVENT_READ)
    pending = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return status, True
        if not selector.select(left):
            continue
        chunk = os.read(qemu.stdout.fileno(), 65536)
        if not chunk:
            break
        pending += chunk
        *lines, pending = pending.split(b"\n")
        for raw in lines:
            line = raw.rstrip(b"\r").decode(errors="replace")
            end = END_MARKER.match(line)
            if end:
                status = int(end.group(1))
            else:
                print(line, file=out, flush=True)
    if pending:
        print(pending.decode(errors="replace"), file=out, flush=True)
    return status, False


def kernel_trouble(console):
    with open(console, errors="replace") as file:
        return [line.rstrip() for line in file if KERNEL_TROUBLE.search(line)]


def main():
    parser = argparse.ArgumentParser(description="run QEMU for one test guest; see run-vm.sh")
    parser.add_argument("--dir", required=True, help="folder of the sockets and console.log")
    parser.add_argument("--timeout", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--dimms", required=True, help="JSON: name -> {memory, device}")
    parser.add_argument("--shell", action="store_true",
                        help="the script's port is a terminal for a person; no time-out")
    parser.add_argument("qemu", nargs="+", help="QEMU's command line, after --")
    args = parser.parse_args()

    console = os.path.join(args.dir, "console.log")
    qmp_path = os.path.join(args.dir, "qmp")
    host_path = os.path.join(args.dir, "host")
    with open(args.dimms) as file:
        dimms = json.load(file)
    command = args.qemu + [
        "-display", "none", "-monitor", "none",
        "-chardev", f"file,id=console,path={console}", "-serial", "chardev:console",
        "-chardev", "stdio,id=script,signal=off", "-serial", "chardev:script",
        "-chardev", f"socket,id=host,path={host_path},server=on,wait=off",
        "-device", "isa-serial,chardev=host,index=2,irq=5",
        "-qmp", f"unix:{qmp_path},server=on,wait=off"]

    if args.shell:
        qemu = subprocess.Popen(command)
    else:
        qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    status, timed_out = None, False
    try:
        host = Host(Qmp(qmp_path), dimms)
        threading.Thread(target=serve_requests, args=(host_path, host), daemon=True).start()
        if args.shell:
            return qemu.wait()
        status, timed_out = pump(qemu, args.timeout, sys.stdout)
    except (OSError, QmpError) as error:
        print(f"vm: QEMU did not come up: {error}", file=sys.stderr)
    finally:
        if timed_out or status is None:
            qemu.kill()
        try:
            qemu_status = qemu.wait(30)
        except subprocess.TimeoutExpired:
            qemu.kill()
            qemu_status = qemu.wait()

    wrong = []
    if timed_out:
        wrong.append(f"no end within {args.timeout:g} s")
    elif status is None:
        wrong.append("the guest stopped before its script ended")
    elif status != 0:
        wrong.append(f"the script ended with status {status}")
    if not timed_out and qemu_status != 0:
        wrong.append(f"QEMU ended with status {qemu_status}")
    trouble = kernel_trouble(console) if os.path.exists(console) else []
    if trouble:
        wrong.append("the kernel reported trouble: " + trouble[0])
    if not wrong:
        return 0
    for reason in wrong:
        print(f"vm: {reason}", file=sys.stderr)
    print(f"vm: the guest's console is {console}; its last lines:", file=sys.stderr)
    if os.path.exists(console):
        with open(console, errors="replace") as file:
            sys.stderr.writelines(file.readlines()[-25:])
    return 1


if __name__ == "__main__":
    sys.exit(main())
