"""Measures the commands beside a floor and beside PyTorch, in the same run, interleaved, and prints one table.

usage: run.py [start] [list] [memory] [disk] [tmpfs] [reshard] [limits] [columns] [sparse] [plan] [scan] [consolidate]
              [live] [chain] [fsdp2] [--gb 4] [--mib 512] [--rounds 7] [--work DIR]      (default: all)

Every figure is a ratio against something measured in the same round. Disk rounds are cold (caches dropped, which needs root; said when
not possible) and durable. Nothing is measured on the first round."""
import argparse
import json
import pathlib
import shutil
import statistics
import struct
import subprocess
import sys

from live_rows import LIVE_ROWS
from measure import BIN, HERE, ROOT, Run, Table, cold, numbers, spread
from rows import ROWS


def timed(command):
    """-> (seconds, peak RSS in MiB, CPU seconds, stdout) of one process; failure ends the bench."""
    run = Run(command)
    return run.seconds, run.rss, run.cpu, run.out


def make_source(work, gb, world=4):
    path = work / f"source_{gb}gb_w{world}"
    if not (path / ".metadata").exists():
        shutil.rmtree(path, ignore_errors=True)
        subprocess.run([sys.executable, HERE / "make_checkpoint.py", path, "--gb", str(gb), "--world", str(world)], check=True)
    return path


def many_tensors(work):
    """10,000 tensors in 64 safetensors files with an index, written here byte by byte."""
    path = work / "many_tensors"
    if (path / "model.safetensors.index.json").exists():
        return path
    path.mkdir(parents=True, exist_ok=True)
    index = {}
    for file in range(64):
        name = f"model-{file + 1:05}-of-00064.safetensors"
        header, offset = {}, 0
        for i in range(file, 10000, 64):
            header[f"layers.{i}.weight"] = {"dtype": "F32", "shape": [64, 16], "data_offsets": [offset, offset + 4096]}
            index[f"layers.{i}.weight"] = name
            offset += 4096
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (path / name).write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 40960000}, "weight_map": index}))
    return path


def bench_start(table, options):
    def best(command, runs=15):
        return [timed(command) for _ in range(runs)]
    times = best([BIN / "ckpt-inspect", "--help"])
    floor = best(["/bin/true"])
    ms = [t[0] * 1e3 for t in times]
    table.add("`ckpt-inspect --help`, ms (a bare process beside it: %s)" % spread([t[0] * 1e3 for t in floor], 1), spread(ms, 1), "<= 10", statistics.median(ms) <= 10)
    small = ROOT / "sample_checkpoints/torchsave/tied_views_zip/checkpoint/file.pt"
    times = best([BIN / "ckpt-inspect", "summary", small])
    ms, rss = [t[0] * 1e3 for t in times], max(t[1] for t in times)
    table.add("summary of a file of 10 tensors, ms", spread(ms, 1), "<= 20", statistics.median(ms) <= 20)
    table.add("its peak memory, MiB", f"{rss:.0f}", "<= 32", rss <= 32)


def bench_list(table, options):
    many = many_tensors(options.work)
    dcp = options.work / "many_tensors_dcp"
    shutil.rmtree(dcp, ignore_errors=True)
    timed([BIN / "ckpt-convert", many, dcp, "--to", "torch-dcp", "--world-size", "64", "--replicate", "*"])
    for name, path in (("safetensors", many), ("DCP", dcp)):
        ms = [timed([BIN / "ckpt-inspect", "ls", path, "--format", "json"])[0] * 1e3 for _ in range(9)]
        table.add(f"ls of 10,000 tensors in 64 files, {name}, ms", spread(ms, 0), "<= 300", statistics.median(ms) <= 300)


def bench_memory(table, options):
    peaks = {}
    for gb in (1, 4):
        source, target = make_source(options.work, gb), options.work / "memory_out"
        shutil.rmtree(target, ignore_errors=True)
        peaks[gb] = timed([BIN / "ckpt-reshard", source, target, "--world-size", "3", "--mem-limit", "256MiB"])[1]
        shutil.rmtree(target)
    ratio = max(peaks.values()) / min(peaks.values())
    table.add("peak memory under --mem-limit 256MiB, 1 GB and 4 GB, MiB", f"{peaks[1]:.0f} and {peaks[4]:.0f}", "<= 384", max(peaks.values()) <= 384)
    table.add("their ratio", f"{ratio:.3f}", "<= 1.05", ratio <= 1.05)


def remove(path):
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def bench_disk(table, options):
    source = make_source(options.work, options.gb)
    out = options.work / "disk_out"
    commands = {
        "floor": [sys.executable, HERE / "floor_copy.py", source, out],
        "ours": [BIN / "ckpt-reshard", source, out, "--world-size", "3"],
        "torch": [sys.executable, HERE / "peer_dcp.py", "resave", source, out],
        "torch, 2 threads": [sys.executable, HERE / "peer_dcp.py", "resave", source, out, "2"],
        "dcp_to_torch_save": [sys.executable, HERE / "peer_dcp.py", "torch_save", source, out],
    }
    rounds = {name: [] for name in commands}
    for r in range(options.rounds + 1):
        for name, command in commands.items():
            remove(out)
            cold()
            seconds, rss, cpu, text = timed(command)
            inner = numbers(text)
            if name == "floor":
                seconds = inner["seconds"]
            if "torch" in name:
                seconds, cpu = inner["seconds"], inner["cpu"]
            if r:
                rounds[name].append((seconds, rss, cpu))
    remove(out)
    report(table, rounds, f"{options.gb:g} GB DCP 4 -> 3 on disk, cold, durable", floor_bar=0.85, speed_bar=None, cpu_bar=10)


def bench_tmpfs(table, options):
    source_disk = make_source(options.work, options.gb)
    memory = pathlib.Path("/dev/shm/tessera_bench")
    shutil.rmtree(memory, ignore_errors=True)
    need = options.gb * 2.2e9
    if shutil.disk_usage("/dev/shm").free < need:
        print(f"tmpfs: skipped, /dev/shm has less than {need / 1e9:.1f} GB free")
        return
    source, out = memory / "source", memory / "out"
    shutil.copytree(source_disk, source)
    commands = {
        "cp": ["cp", "-r", source, out],
        "ours": [BIN / "ckpt-reshard", source, out, "--world-size", "3"],
        "torch": [sys.executable, HERE / "peer_dcp.py", "resave", source, out],
    }
    rounds = {name: [] for name in commands}
    for r in range(options.rounds + 1):
        for name, command in commands.items():
            shutil.rmtree(out, ignore_errors=True)
            seconds, rss, cpu, text = timed(command)
            if name == "torch":
                inner = numbers(text)
                seconds, cpu = inner["seconds"], inner["cpu"]
            if r:
                rounds[name].append((seconds, rss, cpu))
    shutil.rmtree(memory, ignore_errors=True)
    report(table, rounds, f"{options.gb:g} GB DCP 4 -> 3 on tmpfs", floor_bar=None, speed_bar=5, cpu_bar=5)


def report(table, rounds, what, floor_bar, speed_bar, cpu_bar):
    ours, torch = rounds["ours"], rounds["torch"]
    for name, values in rounds.items():
        print(f"| {what}: {name} | {spread([v[0] for v in values])} s, {max(v[1] for v in values):.0f} MiB, {spread([v[2] for v in values])} CPU s | | |")
    ratio = lambda name, i: [b[i] / a[i] for a, b in zip(ours, rounds[name])]
    if "floor" in rounds:
        values = ratio("floor", 0)
        table.add(f"{what}: floor / ours, seconds", spread(values), f">= {floor_bar}", statistics.median(values) >= floor_bar)
    if "cp" in rounds:
        values = ratio("cp", 0)
        table.at_least(f"P3 {what}: cp / ours, seconds", values, 0.8)
    # The peer's best setting of each round, by seconds.
    rounds["torch"] = [min(each, key=lambda v: v[0]) for each in zip(*(v for n, v in rounds.items() if n.startswith("torch")))]
    values = ratio("torch", 0)
    table.add(f"P3 {what}: PyTorch load + save / ours, seconds", spread(values), f">= {speed_bar}" if speed_bar else "(reported)",
              not speed_bar or statistics.median(values) >= speed_bar)
    values = ratio("torch", 1)
    table.add(f"P3 {what}: PyTorch / ours, peak memory", spread(values, 1), ">= 20", statistics.median(values) >= 20)
    values = ratio("torch", 2)
    table.add(f"P3 {what}: PyTorch / ours, CPU seconds", spread(values, 1), f">= {cpu_bar}", statistics.median(values) >= cpu_bar)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = {"start": bench_start, "list": bench_list, "memory": bench_memory, "disk": bench_disk, "tmpfs": bench_tmpfs} | ROWS | LIVE_ROWS
    parser.add_argument("names", nargs="*", choices=[[], *names], default=[])
    parser.add_argument("--gb", type=float, default=4)
    parser.add_argument("--mib", type=int, default=512, help="size of the states that live, chain and fsdp2 save")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--programs", type=lambda text: pathlib.Path(text).resolve(), help="folder of built benchmark programs (live_save, fsdp_state)")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build" / "bench")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    table = Table()
    print("| what | figure, median (min - max) | bar | met |\n|---|---|---|---|")
    for name in options.names or names:
        names[name](table, options, *([make_source] if name in ROWS else []))
    missed = [row for row in table.rows if row[3] == "NO"]
    print(f"\n{len(table.rows) - len(missed)} of {len(table.rows)} bars met")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
