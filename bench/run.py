"""Measures the commands beside a floor and beside PyTorch, in the same run, interleaved, and prints one table.

usage: run.py [start] [list] [memory] [disk] [tmpfs] [live] [chain] [fsdp2] [--gb 4] [--rounds 3] [--work DIR]      (default: all)

Every figure is a ratio against something measured in the same round. Disk rounds are cold (caches dropped, which needs root; said when
not possible) and durable. Nothing is measured on the first round."""
import argparse
import json
import os
import pathlib
import re
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BIN = ROOT / "build" / "bin"
HERE = pathlib.Path(__file__).resolve().parent


def timed(command):
    """-> (seconds, peak RSS in MiB, CPU seconds, stdout) of one process; failure ends the bench."""
    out = subprocess.PIPE
    start = time.perf_counter()
    process = subprocess.Popen([str(c) for c in command], stdout=out, stderr=subprocess.PIPE)
    stdout = process.stdout.read()
    stderr = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command}: exit {process.returncode}: {stderr.decode()[-500:]}")
    return seconds, usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime, stdout.decode()


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


class Table:
    def __init__(self):
        self.rows = []

    def add(self, what, figure, bar, ok):
        self.rows.append((what, figure, bar, "yes" if ok else "NO"))
        print(f"| {what} | {figure} | {bar} | {'yes' if ok else 'NO'} |", flush=True)


def numbers(text):
    return {k: float(v) for k, v in re.findall(r"(\w+) ([\d.]+)", text)}


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


def bench_disk(table, options):
    source = make_source(options.work, options.gb)
    out = options.work / "disk_out"
    commands = {
        "floor": [sys.executable, HERE / "floor_copy.py", source, out],
        "ours": [BIN / "ckpt-reshard", source, out, "--world-size", "3"],
        "torch": [sys.executable, HERE / "peer_dcp.py", "resave", source, out],
    }
    rounds = {name: [] for name in commands}
    for r in range(options.rounds + 1):
        for name, command in commands.items():
            shutil.rmtree(out, ignore_errors=True)
            cold()
            seconds, rss, cpu, text = timed(command)
            inner = numbers(text)
            if name == "floor":
                seconds = inner["seconds"]
            if name == "torch":
                seconds, cpu = inner["seconds"], inner["cpu"]
            if r:
                rounds[name].append((seconds, rss, cpu))
    shutil.rmtree(out, ignore_errors=True)
    report(table, rounds, f"{options.gb:g} GB DCP 4 -> 3 on disk, cold, durable", floor_bar=0.7, speed_bar=None)


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
    report(table, rounds, f"{options.gb:g} GB DCP 4 -> 3 on tmpfs", floor_bar=None, speed_bar=3)


def program(options, name):
    """A benchmark in C++, built on first use (with the runtime, for PyTorch's LibTorch)."""
    if options.programs:
        return options.programs / name
    folder = ROOT / "build" / "bench_programs"
    torch = subprocess.run([sys.executable, "-c", "import torch; print(torch.utils.cmake_prefix_path)"], check=True, capture_output=True, text=True)
    quiet = dict(check=True, stdout=sys.stderr)
    subprocess.run(["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DTESSERA_BUILD_BENCH=ON",
                    "-DTESSERA_BUILD_FSDP=ON", f"-DCMAKE_PREFIX_PATH={torch.stdout.strip()}"], **quiet)
    subprocess.run(["cmake", "--build", folder, "--target", name], **quiet)
    return folder / "bin" / name


def tmpfs_folder(need):
    memory = pathlib.Path("/dev/shm/tessera_bench")
    shutil.rmtree(memory, ignore_errors=True)
    if shutil.disk_usage("/dev/shm").free < need:
        print(f"tmpfs: skipped, /dev/shm has less than {need / 1e9:.1f} GB free")
        return None
    return memory


def bench_live(table, options):
    """Saving from memory: one rank to a core, since what ranks of one machine share is no property of the code."""
    for ranks, mib, tensors in ((1, options.mib, 200), (2, options.mib, 2000)):
        figures = json.loads(timed([program(options, "live_save"), options.work / "live", ranks, mib, tensors])[3])
        what = f"{ranks} ranks, {mib} MiB, {tensors} tensors"
        table.add(f"{what}: stall of save_async / memcpy, seconds", f"{figures['stall_of_memcpy']:.2f}", "<= 1.15", figures["stall_of_memcpy"] <= 1.15)
        table.add(f"{what}: the same, CPU seconds of the caller", f"{figures['stall_cpu_of_memcpy']:.2f}", "<= 1.15", figures["stall_cpu_of_memcpy"] <= 1.15)
        table.add(f"{what}: durable save / stall", f"{figures['save_of_stall']:.1f}", ">= 10", figures["save_of_stall"] >= 10)
        table.add(f"{what}: stall with a lazy snapshot / stall", f"{figures['lazy_of_stall']:.3f}", "<= 0.1", figures["lazy_of_stall"] <= 0.1)
        if ranks == 1:  # a core is free for the writer
            table.add(f"{what}: step while it persists / alone", f"{figures['step_while_saving']:.2f}", "<= 1.10", figures["step_while_saving"] <= 1.10)
        table.add(f"{what}: second plan / first", f"{figures['plan_again_of_first']:.4f}", "<= 0.02", figures["plan_again_of_first"] <= 0.02)
        table.add(f"{what}: plan bytes of later saves", figures["plan_bytes_again"], "0", figures["plan_bytes_again"] == 0)


def stack(options, processes):
    """Arguments of fsdp_state and of its peer: a model whose state with AdamW's moments takes about options.mib."""
    width = 512
    layers = max(2, round(options.mib * (1 << 20) / (12 * (4 * width * width + 3 * width))))
    return [processes, layers, width]


def bench_chain(table, options):
    """Save on 8 ranks, reshard to 6, load on 6, beside writing, copying and reading the same bytes."""
    state, folder = program(options, "fsdp_state"), options.work / "chain"
    ratios = []
    for number in range(options.rounds + 1):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        ours = [json.loads(timed([state, folder, *stack(options, 8), 0, "save", folder / "a"])[3])["seconds"]]
        size = sum(f.stat().st_size for f in (folder / "a").iterdir())
        ours.append(timed([BIN / "ckpt-reshard", folder / "a", folder / "b", "--world-size", 6])[0])
        ours.append(json.loads(timed([state, folder, *stack(options, 6), 0, "load", folder / "b"])[3])["seconds"])
        floors = [numbers(timed([sys.executable, HERE / "floor_files.py", "write", folder / "floor", 8, size])[3])["seconds"],
                  numbers(timed([sys.executable, HERE / "floor_copy.py", folder / "a", folder / "c"])[3])["seconds"],
                  numbers(timed([sys.executable, HERE / "floor_files.py", "read", folder / "floor", 6, size])[3])["seconds"]]
        if number:
            ratios.append(sum(ours) / sum(floors))
            print(f"| chain, {size / 1e6:.0f} MB: save, reshard, load {[round(s, 3) for s in ours]} s; write, copy, read {[round(s, 3) for s in floors]} s | | | |")
    shutil.rmtree(folder, ignore_errors=True)
    table.add("save at 8, reshard to 6, load at 6 / the three floors", spread(ratios), "<= 1.25", statistics.median(ratios) <= 1.25)


def bench_fsdp2(table, options):
    """The same model and optimizer, 4 processes with Gloo, on tmpfs."""
    memory = tmpfs_folder(options.mib * 3 * (1 << 20))
    if memory is None:
        return
    memory.mkdir(parents=True)
    arguments = [memory, *stack(options, 4), options.rounds]
    theirs = json.loads(timed([sys.executable, HERE / "peer_fsdp2_state.py", *arguments])[3])
    for way in ((), ("in-place",)):  # by default a load reads aside first, so that an error leaves all as it was
        ours = json.loads(timed([program(options, "fsdp_state"), *arguments, *way])[3])
        what = f"{options.mib} MiB, 4 processes{', load in place' if way else ''}: "
        for verb in ("save", "load"):
            ratio = theirs[f"{verb}_s"] / ours[f"{verb}_s"]
            table.add(f"{what}FSDP2 + DCP / ours, {verb}, seconds ({theirs[f'{verb}_s']:.3f} and {ours[f'{verb}_s']:.3f})", f"{ratio:.1f}", ">= 3", ratio >= 3)
        ratio = ours["extra_mib"] / max(theirs["extra_mib"], 1e-9)
        table.add(f"{what}ours / FSDP2 + DCP, peak extra memory ({ours['extra_mib']:.0f} and {theirs['extra_mib']:.0f} MiB)", f"{ratio:.2f}", "<= 0.25", ratio <= 0.25)
    shutil.rmtree(memory, ignore_errors=True)


def report(table, rounds, what, floor_bar, speed_bar):
    ours, torch = rounds["ours"], rounds["torch"]
    for name, values in rounds.items():
        print(f"| {what}: {name} | {spread([v[0] for v in values])} s, {max(v[1] for v in values):.0f} MiB, {spread([v[2] for v in values])} CPU s | | |")
    ratio = lambda name, i: [b[i] / a[i] for a, b in zip(ours, rounds[name])]
    if "floor" in rounds:
        values = ratio("floor", 0)
        table.add(f"{what}: floor / ours, seconds", spread(values), f">= {floor_bar}", statistics.median(values) >= floor_bar)
    if "cp" in rounds:
        values = ratio("cp", 0)
        table.add(f"{what}: cp / ours, seconds", spread(values), "(reported)", True)
    values = ratio("torch", 0)
    table.add(f"{what}: PyTorch load + save / ours, seconds", spread(values), f">= {speed_bar}" if speed_bar else "(reported)",
              not speed_bar or statistics.median(values) >= speed_bar)
    values = ratio("torch", 1)
    table.add(f"{what}: PyTorch / ours, peak memory", spread(values, 1), ">= 10", statistics.median(values) >= 10)
    values = ratio("torch", 2)
    table.add(f"{what}: PyTorch / ours, CPU seconds", spread(values, 1), ">= 5", statistics.median(values) >= 5)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = {"start": bench_start, "list": bench_list, "memory": bench_memory, "disk": bench_disk, "tmpfs": bench_tmpfs,
             "live": bench_live, "chain": bench_chain, "fsdp2": bench_fsdp2}
    parser.add_argument("names", nargs="*", choices=[[], *names], default=[])
    parser.add_argument("--gb", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=512, help="size of the states that live, chain and fsdp2 save")
    parser.add_argument("--programs", type=pathlib.Path, help="folder of built benchmark programs (live_save, fsdp_state)")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build" / "bench")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    table = Table()
    print("| what | figure, median (min - max) | bar | met |\n|---|---|---|---|")
    for name in options.names or names:
        names[name](table, options)
    missed = [row for row in table.rows if row[3] == "NO"]
    print(f"\n{len(table.rows) - len(missed)} of {len(table.rows)} bars met")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
