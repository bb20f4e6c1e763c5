#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Bar P.4: `ndpctl list` takes under 50 ms, and `ndpctl top` under 1 % of a core at one refresh a
# second, on the host, with an ndpd and an application on the in-process device. The time of list is
# the median of wall time over many runs: from the start of the process to its end. That of top is its
# processor time, user and system, divided by wall time; on a terminal of its own, as wide as the tables.
# Both count all that the process does, also before main(). Run from the top of the tree.
set -u

build=${NDP_BUILD:-build}
export NDP_SHARE=$PWD/share
seconds=${1:-20}
work=$(mktemp -d)
socket=$work/socket
pids=''
end_all() {
	for p in $pids; do kill -TERM "$p" 2>/dev/null; done
	wait
	rm -rf "$work"
}
trap end_all EXIT

"$build/ndpd" --socket "$socket" 2>"$work/ndpd.log" &
pids=$!
for _ in $(seq 250); do
	[ -S "$socket" ] && break
	sleep 0.02
done
"$build/bench/ndpd_app" "$socket" 1000 >"$work/app" &
pids="$! $pids"
for _ in $(seq 250); do
	grep -q ready "$work/app" && break
	sleep 0.02
done
grep -q ready "$work/app" || { cat "$work/ndpd.log"; echo "bar P.4 not measured"; exit 1; }

python3 - "$build/ndpctl" "$socket" "$seconds" <<'EOF'
import fcntl, os, pty, select, signal, statistics, struct, subprocess, sys, termios, time
ndpctl, socket, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
missed = False

def bar(name, value, limit, unit, how):
    global missed
    missed |= not value < limit
    print(f"# {name}: {how}")
    print(f"bar P.4 {name} value={value:.3g}{unit} goal=<{limit}{unit} "
          f"{'pass' if value < limit else 'fail'}")

def milliseconds(*arguments):
    begin = time.monotonic()
    subprocess.run([ndpctl, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                   check=True)
    return 1000 * (time.monotonic() - begin)

for arguments in (["list"], ["list", "--clients", "--socket", socket]):
    milliseconds(*arguments)
    times = sorted(milliseconds(*arguments) for _ in range(51))
    bar("-".join(["ndpctl"] + [a.strip("-") for a in arguments[:2]]), statistics.median(times), 50, "ms",
        f"median of {len(times)}, the longest took {times[-1]:.3g} ms, wall")

pid, fd = pty.fork()
if pid == 0:
    os.environ["TERM"] = "xterm-256color"
    os.execv(ndpctl, [ndpctl, "top", "--delay", "1", "--socket", socket])
fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
begin, out = time.monotonic(), b""
while time.monotonic() - begin < seconds:
    if select.select([fd], [], [], 0.1)[0]:
        out += os.read(fd, 65536)
os.kill(pid, signal.SIGINT)
wall = time.monotonic() - begin
while True:
    try:
        if not os.read(fd, 65536):
            break
    except OSError:
        break
_, status, usage = os.wait4(pid, 0)
if os.waitstatus_to_exitcode(status) != 130 or b"ndpd_app" not in out:
    sys.exit("bar P.4 not measured: ndpctl top did not show what it should")
bar("ndpctl-top", 100 * (usage.ru_utime + usage.ru_stime) / wall, 1, "%",
    f"of a core, over {wall:.0f} s at one refresh a second")
sys.exit(missed)
EOF
