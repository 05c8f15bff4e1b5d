"""Rows of run.py that measure the library inside training programs: saving from memory, going on elsewhere, and FSDP2 with DCP."""
import json
import pathlib
import shutil
import statistics
import subprocess
import sys

from measure import BIN, HERE, ROOT, Run, numbers, spread


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
    for ranks, mib, tensors in ((1, options.mib, 1164), (2, options.mib, 2000)):  # 1164: of a LLaMA 7B with AdamW
        figures = json.loads(Run([program(options, "live_save"), options.work / "live", ranks, mib, tensors]).out)
        what = f"{ranks} ranks, {mib} MiB, {tensors} tensors"
        table.add(f"{what}: stall of save_async / memcpy, seconds", f"{figures['stall_of_memcpy']:.2f}", "<= 1.15", figures["stall_of_memcpy"] <= 1.15)
        table.add(f"{what}: the same, CPU seconds of the caller", f"{figures['stall_cpu_of_memcpy']:.2f}", "<= 1.15", figures["stall_cpu_of_memcpy"] <= 1.15)
        table.add(f"{what}: durable save / stall", f"{figures['save_of_stall']:.1f}", ">= 10", figures["save_of_stall"] >= 10)
        table.add(f"{what}: plain write and fsync of the same bytes / stall", f"{figures['write_floor_s'] / figures['stall_s']:.1f}", "(reported)", True)
        table.add(f"{what}: stall with a lazy snapshot / stall", f"{figures['lazy_of_stall']:.3f}", "<= 0.1", figures["lazy_of_stall"] <= 0.1)
        if ranks == 1:  # a core is free for the writer
            table.add(f"{what}: step while it persists / alone", f"{figures['step_while_saving']:.2f}", "<= 1.10", figures["step_while_saving"] <= 1.10)
        table.add(f"{what}: second plan / first", f"{figures['plan_again_of_first']:.4f}", "<= 0.02", figures["plan_again_of_first"] <= 0.02)
        table.add(f"{what}: plan bytes of later saves", figures["plan_bytes_again"], "0", figures["plan_bytes_again"] == 0)
    # More ranks than cores say nothing about copies, but planning is each rank's own work.
    figures = json.loads(Run([program(options, "live_save"), options.work / "live", 8, 64, 2000]).out)
    again = figures["plan_again_of_first"]
    table.add("8 ranks, 2000 tensors: second plan / first", f"{again:.4f}", "<= 0.02", again <= 0.02)


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
        ours = [json.loads(Run([state, folder, *stack(options, 8), 0, "save", folder / "a"]).out)["seconds"]]
        size = sum(f.stat().st_size for f in (folder / "a").iterdir())
        ours.append(Run([BIN / "ckpt-reshard", folder / "a", folder / "b", "--world-size", 6]).seconds)
        ours.append(json.loads(Run([state, folder, *stack(options, 6), 0, "load", folder / "b"]).out)["seconds"])
        floors = [numbers(Run([sys.executable, HERE / "floor_files.py", "write", folder / "floor", 8, size]).out)["seconds"],
                  numbers(Run([sys.executable, HERE / "floor_copy.py", folder / "a", folder / "c"]).out)["seconds"],
                  numbers(Run([sys.executable, HERE / "floor_files.py", "read", folder / "floor", 6, size]).out)["seconds"]]
        if number:
            ratios.append(sum(ours) / sum(floors))
            print(f"| chain, {size / 1e6:.0f} MB: save, reshard, load {[round(s, 3) for s in ours]} s; write, copy, read {[round(s, 3) for s in floors]} s | | | |")
    shutil.rmtree(folder, ignore_errors=True)
    table.add("save at 8, reshard to 6, load at 6 / the three floors", spread(ratios), "<= 1.25", statistics.median(ratios) <= 1.25)


def add_memory(table, what, ours, theirs, takes_state=False):
    """`takes_state`: asked to read beside the state, so that there is no bar."""
    ratio = ours["extra_mib"] / max(theirs["extra_mib"], 1e-9)
    parts = "; ".join(f"{verb} {ours[verb + '_mib']:.1f} and {theirs[verb + '_mib']:.1f} MiB" for verb in ("save", "load"))
    row = f"{what}ours / FSDP2 + DCP, peak extra memory ({parts})"
    if takes_state:
        print(f"| {row} | {ratio:.2f} | | |")
    else:
        table.add(row, f"{ratio:.2f}", "<= 0.25", ratio <= 0.25)


def bench_fsdp2(table, options):
    """The same model and optimizer, 4 processes with Gloo, on tmpfs."""
    memory = tmpfs_folder(options.mib * 3 * (1 << 20))
    if memory is None:
        return
    memory.mkdir(parents=True)
    arguments = [memory, *stack(options, 4), options.rounds]
    theirs = json.loads(Run([sys.executable, HERE / "peer_fsdp2_state.py", *arguments]).out)
    for way in ((), ("aside",), ("in-place",)):  # by default a load of this size reads twice
        ours = json.loads(Run([program(options, "fsdp_state"), *arguments, *way]).out)
        what = f"{options.mib} MiB, 4 processes{f', load {way[0]}' if way else ''}: "
        for verb in ("save", "load"):
            ratio = theirs[f"{verb}_s"] / ours[f"{verb}_s"]
            table.add(f"{what}FSDP2 + DCP / ours, {verb}, seconds ({theirs[f'{verb}_s']:.3f} and {ours[f'{verb}_s']:.3f})", f"{ratio:.1f}", ">= 3", ratio >= 3)
        add_memory(table, what, ours, theirs, takes_state=way == ("aside",))
    for width, layers in ((256, 160), (1024, 11), (2048, 4), (4096, 2)):  # many small tensors; few large ones, with which DCP grows
        shutil.rmtree(memory, ignore_errors=True)
        need = 14 * layers * 4 * width * width * 4  # checkpoint, state, gradients, and what an initial model takes
        if tmpfs_folder(need) is None:
            break
        memory.mkdir(parents=True)
        arguments = [memory, 4, layers, width, 1]
        theirs = json.loads(Run([sys.executable, HERE / "peer_fsdp2_state.py", *arguments]).out)
        ours = json.loads(Run([program(options, "fsdp_state"), *arguments]).out)
        add_memory(table, f"width {width}, {layers} layers, 4 processes: ", ours, theirs)
    shutil.rmtree(memory, ignore_errors=True)


LIVE_ROWS = {"live": bench_live, "chain": bench_chain, "fsdp2": bench_fsdp2}
