"""What the rows of the bench have in common: one process timed, its I/O counted, caches emptied, values with their spread."""
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BIN = pathlib.Path(os.environ.get("TESSERA_BIN", ROOT / "build" / "bin"))
HERE = pathlib.Path(__file__).resolve().parent


class Run:
    """One process: seconds, cpu (seconds), rss (MiB), read and written (bytes at the block layer), out (text)."""

    def __init__(self, command, enter=None, fine=(0,)):
        start = time.perf_counter()
        process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=enter)
        self.out = process.stdout.read().decode()
        errors = process.stderr.read().decode()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended; its counters are still there
        self.seconds = time.perf_counter() - start
        counters = dict(re.findall(r"(\w+): (\d+)", pathlib.Path(f"/proc/{process.pid}/io").read_text()))
        self.read, self.written = int(counters["read_bytes"]), int(counters["write_bytes"])
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in fine:
            raise SystemExit(f"{command}: exit {process.returncode}: {errors[-500:]}")
        self.cpu = usage.ru_utime + usage.ru_stime
        self.rss = usage.ru_maxrss / 1024


def cold():
    """Empties the page cache so that sources come from the disk."""
    os.sync()
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        print("note: caches could not be dropped (not root): sources are warm", file=sys.stderr)
    time.sleep(3)


def spread(values, digits=2):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} - {max(values):.{digits}f})"


def numbers(text):
    return {k: float(v) for k, v in re.findall(r"(\w+) (-?[\d.]+)", text)}


def tree_bytes(path):
    return sum(f.stat().st_size for f in pathlib.Path(path).rglob("*") if f.is_file())


class Table:
    def __init__(self):
        self.rows = []

    def add(self, what, figure, bar, ok):
        self.rows.append((what, figure, bar, "yes" if ok else "NO"))
        print(f"| {what} | {figure} | {bar} | {'yes' if ok else 'NO'} |", flush=True)

    def at_most(self, what, values, bar, digits=2):
        self.add(what, spread(values, digits), f"<= {bar}", statistics.median(values) <= bar)

    def at_least(self, what, values, bar, digits=2):
        self.add(what, spread(values, digits), f">= {bar}", statistics.median(values) >= bar)

    def tell(self, what, values, digits=2):
        self.add(what, spread(values, digits), "(reported)", True)

    def skip(self, what, why):
        print(f"| {what} | skipped: {why} | | |", flush=True)
