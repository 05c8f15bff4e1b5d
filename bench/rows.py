"""Rows about speed at its limits: reshard against the floor, memory limits, columns, sparse and huge checkpoints, scans, consolidation."""
import json
import math
import os
import pathlib
import re
import shutil
import statistics
import struct
import subprocess
import sys
import time

from measure import BIN, HERE, ROOT, Run, cold, numbers, spread, tree_bytes

INSPECT, RESHARD, CONVERT = BIN / "ckpt-inspect", BIN / "ckpt-reshard", BIN / "ckpt-convert"
FLOOR_SPREAD = 0.25  # a round whose floor is further from the median is dropped, two of seven at most


def fresh(path):
    shutil.rmtree(path, ignore_errors=True)
    return path


def usable(rounds):
    """Rounds whose floor is near the median floor; what is dropped is said."""
    middle = statistics.median(r["floor"].seconds for r in rounds)
    far = sorted(rounds, key=lambda r: -abs(r["floor"].seconds / middle - 1))
    dropped = [r for r in far[:len(rounds) * 2 // 7] if abs(r["floor"].seconds / middle - 1) > FLOOR_SPREAD]
    for r in dropped:
        print(f"(dropped a round: floor {r['floor'].seconds:.2f} s, median {middle:.2f} s)", flush=True)
    return [r for r in rounds if r not in dropped]


def bench_reshard(table, options, make_source):
    """The same bytes by an O_DIRECT copy, by cp and by ckpt-reshard: cold, durable, interleaved."""
    out = options.work / "reshard_out"
    cold()
    program = Run([RESHARD, "--version"]).read  # itself and its libraries, which a cold start reads as well
    for world, target in ((4, 6), (8, 3), (4, 4)):
        source = make_source(options.work, options.gb, world)
        nbytes = tree_bytes(source)
        commands = {"floor": [sys.executable, HERE / "floor_copy.py", source, out],
                    "cp": ["sh", "-c", f"cp -r '{source}' '{out}' && sync"],
                    "ours": [RESHARD, source, out, "--world-size", str(target)]}
        rounds = []
        for number in range(options.rounds + 1):
            now, order = {}, list(commands)
            order = order[number % 3:] + order[:number % 3]
            for name in order:
                fresh(out)
                cold()
                now[name] = Run(commands[name])
            written = tree_bytes(options.work / "reshard_out") if order[-1] == "ours" else 0
            now["written"] = written
            if number:
                rounds.append(now)
        fresh(out)
        good = usable(rounds)
        kind = "aligned" if world == target else "misaligned"
        what = f"{options.gb:g} GB DCP {world} -> {target}, {kind}"
        ratio = [numbers(r["floor"].out)["seconds"] / r["ours"].seconds for r in good]
        table.at_least(f"P1 {what}: floor / ours, seconds", ratio, 0.92 if kind == "aligned" else 0.85)
        table.at_most(f"P1 {what}: CPU seconds per GB", [r["ours"].cpu / nbytes * 1e9 for r in good], 0.30)
        table.at_most(f"P1 {what}: bytes read without the program's own {program / 1e6:.0f} MB / source",
                      [(r["ours"].read - program) / nbytes for r in good], 1.02, 3)
        table.at_most(f"P1 {what}: bytes written / source", [r["ours"].written / nbytes for r in good], 1.02, 3)
        floor = statistics.median(numbers(r["floor"].out)["seconds"] for r in good)
        cp = statistics.median(r["cp"].seconds for r in good)
        bar = 0.95 if floor / cp > 0.85 else min(3, 0.85 * cp / floor)
        table.at_least(f"P2 {what}: cp -r / ours, seconds (floor / cp {floor / cp:.2f})", [r["cp"].seconds / r["ours"].seconds for r in good], round(bar, 2))


def memory_group(version, limit):
    """A function that moves a process into a fresh cgroup with this limit, and its folder; None where that version has no memory here."""
    base = pathlib.Path("/sys/fs/cgroup/memory" if version == 1 else "/sys/fs/cgroup")
    if version == 2 and "memory" not in ((base / "cgroup.controllers").read_text() if (base / "cgroup.controllers").exists() else ""):
        return None
    if not (base / ("memory.limit_in_bytes" if version == 1 else "cgroup.procs")).exists() or os.geteuid() != 0:
        return None
    group = base / "tessera_bench"
    group.mkdir(exist_ok=True)
    if version == 2:
        (base / "cgroup.subtree_control").write_text("+memory")
    (group / ("memory.limit_in_bytes" if version == 1 else "memory.max")).write_text(str(limit))
    return group, lambda: (group / "cgroup.procs").write_text(str(os.getpid()))


def bench_limits(table, options, make_source):
    source, out = make_source(options.work, options.gb, 4), options.work / "limits_out"
    command = [RESHARD, source, out, "--world-size", "6"]
    for version in (1, 2):
        what = f"P6 {options.gb:g} GB in a cgroup v{version} of 512 MiB, page cache included"
        made = memory_group(version, 512 << 20)
        if made is None:
            table.skip(what, f"no memory cgroup v{version} here, or not root")
            continue
        group, enter = made
        ratios = []
        for number in range(options.rounds + 1):
            seconds = {}
            for name, hook in (("free", None), ("held", enter)):
                fresh(out)
                cold()
                seconds[name] = Run(command, hook).seconds
            if number:
                ratios.append(seconds["held"] / seconds["free"])
        peak = group / ("memory.max_usage_in_bytes" if version == 1 else "memory.peak")
        held = f", peak {int(peak.read_text()) >> 20} MiB" if peak.exists() else ""
        table.at_most(f"{what}: seconds inside / outside{held}", ratios, 1.10)
        group.rmdir()
    fresh(out)


def write_model(path, shapes, nbytes):
    """One safetensors file of float32 tensors of random bits."""
    count = max(1, int(nbytes / (4 * math.prod(shapes))))
    size = 4 * math.prod(shapes)
    header = {f"layers.{i}.weight": {"dtype": "F32", "shape": list(shapes), "data_offsets": [i * size, (i + 1) * size]} for i in range(count)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(count):
            file.write(os.urandom(size))


def bench_columns(table, options, make_source):
    """Column shards to row shards against row shards to row shards of the same bytes, in memory: no disk hides the work."""
    work = fresh(pathlib.Path("/dev/shm/tessera_columns"))
    work.mkdir()
    model, out = work / "model.safetensors", work / "out"
    nbytes = min(options.gb, 1) * 1e9
    for run_bytes in (4096, 1024, 64):
        columns = 8 * run_bytes // 4
        write_model(model, (max(64, 16 * 2**20 // (4 * columns)), columns), nbytes)
        for dim in (0, 1):
            Run([CONVERT, model, fresh(work / f"dim{dim}"), "--to", "torch-dcp", "--mesh", "tp=8", "--placements", f"*=shard({dim})"])
        ratios, cpu = [], []
        for number in range(options.rounds + 1):
            runs = {}
            for dim in (0, 1):
                fresh(out)
                runs[dim] = Run([RESHARD, work / f"dim{dim}", out, "--mesh", "tp=8", "--placements", "*=shard(0)"])
            if number:
                ratios.append(runs[1].seconds / runs[0].seconds)
                cpu.append(runs[1].cpu / runs[0].cpu)
        bar = 1.5 if run_bytes >= 1024 else 3
        table.at_most(f"P7 columns / rows, 8 -> 8 ranks, runs of {run_bytes} B: seconds (CPU {statistics.median(cpu):.2f})", ratios, bar)
    shutil.rmtree(work)


def bench_sparse(table, options, make_source):
    """100 GB of holes: 64 safetensors files, 10,000 tensors."""
    path = options.work / "sparse"
    if not (path / "model.safetensors.index.json").exists():
        fresh(path).mkdir(parents=True)
        index, size = {}, 2500 * 1000 * 4
        for number in range(64):
            name = f"model-{number + 1:05}-of-00064.safetensors"
            names = [f"layers.{i}.weight" for i in range(number, 10000, 64)]
            header = {n: {"dtype": "F32", "shape": [2500, 1000], "data_offsets": [i * size, (i + 1) * size]} for i, n in enumerate(names)}
            text = json.dumps(header).encode()
            text += b" " * (-len(text) % 8)
            (path / name).write_bytes(struct.pack("<Q", len(text)) + text)
            os.truncate(path / name, 8 + len(text) + len(names) * size)
            index |= {n: name for n in names}
        (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 10**11}, "weight_map": index}))
    rounds = []
    for number in range(options.rounds + 1):
        cold()
        run = Run([INSPECT, "summary", path])
        if number:
            rounds.append(run)
    table.at_most("P8 summary of 100 GB, 64 files, 10,000 tensors, cold, ms", [r.seconds * 1e3 for r in rounds], 150, 0)
    table.tell("P8 the same: KiB read, CPU ms " + spread([r.cpu * 1e3 for r in rounds], 0), [r.read / 1024 for r in rounds], 0)
    shutil.rmtree(path)


def bench_plan(table, options, make_source):
    """Metadata alone: 4,883 tensors over 64 to 1,024 ranks, to three quarters of them."""
    plan_scale = BIN / "plan_scale"
    if not plan_scale.exists():
        return table.skip("P9 planning at scale", "build/bin/plan_scale is not built (TESSERA_BUILD_BENCH)")
    chunks, seconds = [], []
    for ranks in (64, 128, 256, 512, 1024):
        path = fresh(options.work / "plan")
        Run([plan_scale, "make", path, "4883", str(ranks)])
        steps = {}
        for number in range(3):
            out = Run([plan_scale, path, str(ranks * 3 // 4)]).out
            for line in out.splitlines():
                word = line.split()[0]
                steps.setdefault(word, []).append(numbers(line))
        total = [f["cpu"] + c["cpu"] for f, c in zip(steps["files"], steps["copies"])]
        chunks.append(steps["chunks"][0]["chunks"])
        seconds.append(min(total))
        shutil.rmtree(path)
    last = lambda step, what: [s[what] for s in steps[step]]
    table.at_most("P9 1,024 -> 768 ranks, 5,000,192 chunks: files and copies planned, CPU s", total, 2)
    table.tell("P9 of them copies, CPU s", last("copies", "cpu"))
    table.tell("P9 reading the metadata, CPU s", last("read", "cpu"))
    table.at_most("P9 peak memory in all, MiB", last("copies", "peak_mib"), 1430, 0)
    table.at_most("P9 manifest, bytes per chunk", last("chunks", "manifest_bytes_per_chunk"), 120, 0)
    slope = statistics.linear_regression([math.log(c) for c in chunks], [math.log(s) for s in seconds]).slope
    table.at_most("P9 growth exponent of planning, 64 to 1,024 ranks", [slope], 1.15)
    path = fresh(options.work / "plan")
    Run([plan_scale, "make", path, "100", "256"])
    ratios = []
    for number in range(3):
        peer = numbers(Run([sys.executable, HERE / "peer_plan.py", "100", "256", "192"]).out)
        ours = [numbers(line) for line in Run([plan_scale, path, "192"]).out.splitlines()]
        ratios.append((peer["save"] + peer["load"]) / max(ours[1]["cpu"] + ours[2]["cpu"], 1e-3))
    table.at_least("P9 PyTorch's planners / ours, 100 tensors, 256 -> 192 ranks, CPU s", ratios, 30, 0)
    shutil.rmtree(path)


def bench_scan(table, options, make_source):
    """Looking at every byte, from the page cache, on two cores."""
    source = make_source(options.work, min(options.gb, 2), 4)
    sealed = fresh(options.work / "scan")
    Run([RESHARD, source, sealed, "--world-size", "2"])
    nbytes = tree_bytes(sealed)
    subprocess.run(["sh", "-c", f"cat '{sealed}'/* > /dev/null"], check=True)
    for name, words in (("stat", ["stat", sealed, "--format", "json"]), ("verify --full", ["verify", sealed, "--full"])):
        # Random bits hold NaNs, which stat reports: exit 1.
        runs = [Run([INSPECT, *words, "--threads", "2"], fine=(0, 1)) for _ in range(options.rounds + 1)][1:]
        table.at_least(f"{name}, from cache, 2 threads: GB/s (CPU s per GB {statistics.median(r.cpu for r in runs) / nbytes * 1e9:.2f})",
                       [nbytes / 1e9 / r.seconds for r in runs], 1.5)
    ratios = []
    for _ in range(options.rounds):
        text = subprocess.run(["openssl", "speed", "-mr", "-multi", "2", "-seconds", "2", "-bytes", "1048576", "sha256"], capture_output=True, text=True).stdout
        speed = float(re.findall(r"\+F:.*sha256:([\d.]+)", text)[-1])
        ratios.append(nbytes / Run([INSPECT, "hash", sealed, "--threads", "2"]).seconds / speed)
    table.at_least("hash / openssl speed -multi 2 sha256", ratios, 0.9)
    shutil.rmtree(sealed)


def bench_consolidate(table, options, make_source):
    """PyTorch's consolidation of its Hugging Face shards into one file, in memory."""
    work = fresh(pathlib.Path("/dev/shm/tessera_consolidate"))
    gb = min(options.gb, 2)
    for dim, bar in ((0, 3), (1, 5)):
        fresh(work).mkdir()
        source, out = work / "source", work / "out"
        Run([sys.executable, HERE / "peer_consolidate.py", "make", source, str(gb), "4", str(dim)])
        seconds, memory, copy = [], [], []
        for number in range(options.rounds + 1):
            fresh(out)
            plain = Run(["cp", "-r", source, out])
            best = None
            for threads in ("1", "2"):
                fresh(out)
                peer = numbers(Run([sys.executable, HERE / "peer_consolidate.py", "join", source, out, threads]).out)
                best = peer if best is None or peer["seconds"] < best["seconds"] else best
            fresh(out).mkdir()
            ours = Run([CONVERT, source, out / "model.safetensors"])
            if number:
                seconds.append(best["seconds"] / ours.seconds)
                memory.append(best["rss_mib"] / ours.rss)
                copy.append(plain.seconds / ours.seconds)
        rows = "rows" if dim == 0 else "columns"
        table.at_least(f"P4 Hugging Face consolidation, {gb:g} GB in 4 shards of {rows}, tmpfs: PyTorch / ours, seconds", seconds, bar)
        table.at_least(f"P4 {rows}: peak memory", memory, 5)
        table.at_least(f"P4 {rows}: cp -r of the same files / ours, seconds", copy, 0.8)
    shutil.rmtree(work)


ROWS = {"reshard": bench_reshard, "limits": bench_limits, "columns": bench_columns, "sparse": bench_sparse, "plan": bench_plan,
        "scan": bench_scan, "consolidate": bench_consolidate}
