#!/usr/bin/env python3
"""NCCL, small enough to travel: with the device code of one architecture alone.

usage: slim_nccl.py libnccl.so.2 OUT.so.xz [ARCH=90]

NCCL from 2.30 on lets several ranks share a GPU where NCCL_MULTI_RANK_GPU_ENABLE is 1; the one that LibTorch 2.11 loads
refuses. Zeroed are `__nv_relfatbin`, which only device linking reads, and in `.nv_fatbin` the code of other architectures;
the result is 204 MB of mostly zeros: 14 MB as xz.
"""
import lzma
import struct
import subprocess
import sys
import tempfile

FATBIN_MAGIC = 0xBA55ED50


def sections(path):
    """Offset and size in the file of the two sections."""
    found = {}
    for line in subprocess.check_output(["readelf", "-SW", path], text=True).splitlines():
        fields = line.replace("[ ", "[").split()
        for i, name in enumerate(fields):
            if name in ("__nv_relfatbin", ".nv_fatbin"):
                found[name] = (int(fields[i + 3], 16), int(fields[i + 4], 16))
    return found


def slim(data, where, arch):
    """Zeroes in place; bytes of device code that are kept."""
    offset, size = where["__nv_relfatbin"]
    data[offset:offset + size] = bytes(size)
    offset, size = where[".nv_fatbin"]
    end, kept = offset + size, 0
    while offset < end - 16:
        magic, _, header, length = struct.unpack_from("<IHHQ", data, offset)
        if magic != FATBIN_MAGIC:
            offset += 8
            continue
        entry, last = offset + header, offset + header + length
        while entry < last:
            _, _, entry_header, entry_size, _, _, _, _, entry_arch = struct.unpack_from("<HHIQIIHHI", data, entry)
            if entry_arch == arch:
                kept += entry_size
            else:
                data[entry + entry_header:entry + entry_header + entry_size] = bytes(entry_size)
            entry += entry_header + entry_size
        offset = last
    return kept


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    arch = int(sys.argv[3]) if len(sys.argv) > 3 else 90
    with tempfile.NamedTemporaryFile() as stripped:
        subprocess.run(["strip", "--strip-debug", "-o", stripped.name, sys.argv[1]], check=True)
        where = sections(stripped.name)
        data = bytearray(open(stripped.name, "rb").read())
    kept = slim(data, where, arch)
    if kept == 0:
        sys.exit(f"slim_nccl.py: {sys.argv[1]} has no code for sm_{arch}")
    with lzma.open(sys.argv[2], "wb", preset=6) as file:
        file.write(data)


if __name__ == "__main__":
    main()
