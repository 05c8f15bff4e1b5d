#!/usr/bin/env python3
"""CPU seconds of `hash`, `verify`, `stat` and a conversion, of two builds in turn, on one checkpoint: fails where the second takes more
than 1/0.95 of the first's.   speed.py NATIVE_BIN OTHER_BIN WORK_FOLDER"""
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys

ROUNDS = 5
LEAST = 0.95
MEGABYTES = 384


def write_source(path):
    """float32 tensors of 8 MiB: numbers between 1 and 2, so that `stat` has values to look at."""
    words = random.Random(5).randbytes(1 << 20)
    block = bytearray(words)
    block[3::4] = b"\x3f" * (len(block) // 4)
    count = MEGABYTES // 8
    header = {f"w{i:03}": {"dtype": "F32", "shape": [2048, 1024], "data_offsets": [i << 23, (i + 1) << 23]} for i in range(count)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(count * 8):
            file.write(block)


def cpu_seconds(command):
    before = os.times()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main(native, other, work):
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    source, dcp = work / "source.safetensors", work / "dcp"
    write_source(source)
    subprocess.run([native / "ckpt-convert", source, dcp, "--to", "torch-dcp", "--world-size", "2"], stdout=subprocess.DEVNULL, check=True)
    slow = []
    for name, words in {
        "hash": ["ckpt-inspect", "hash", source], "hash of torch-dcp": ["ckpt-inspect", "hash", dcp],
        "verify": ["ckpt-inspect", "verify", dcp], "stat": ["ckpt-inspect", "stat", source],
        "convert": ["ckpt-convert", source, work / "out", "--to", "torch-dcp", "--world-size", "3", "--force"],
    }.items():
        spent = {native: [], other: []}
        for _ in range(ROUNDS):
            for folder in (native, other):
                spent[folder].append(cpu_seconds([folder / words[0], *words[1:]]))
        ratio = min(spent[native]) / min(spent[other])
        print(f"{name:18} native {min(spent[native]):.2f} s, wheel {min(spent[other]):.2f} s of CPU: {ratio:.2f} of native's speed")
        if ratio < LEAST and name.startswith(("hash", "verify")):
            slow.append(name)
    shutil.rmtree(work)
    if slow:
        sys.exit(f"FAILED: less than {LEAST} of the native build's speed: {', '.join(slow)}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*(pathlib.Path(word).resolve() for word in sys.argv[1:]))
