"""PyTorch's Hugging Face files: makes W sharded safetensors files as its writer does (shard dim 0 or 1), or joins them.
usage: peer_consolidate.py make DIR GB WORLD DIM | join SRC DST THREADS"""
import json
import os
import pathlib
import resource
import struct
import sys
import time

WIDTH = 4096


def make(folder, gigabytes, world, dim):
    path = pathlib.Path(folder)
    path.mkdir(parents=True)
    count = max(1, int(gigabytes * 1e9 / (WIDTH * WIDTH * 2)))
    shape = [WIDTH // world, WIDTH] if dim == 0 else [WIDTH, WIDTH // world]
    size = shape[0] * shape[1] * 2
    for rank in range(world):
        offsets = [rank * shape[0], 0] if dim == 0 else [0, rank * shape[1]]
        header = {"__metadata__": {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(
            {f"layers.{t}.weight": {"saved_offsets": offsets} for t in range(count)})}}
        for t in range(count):
            header[f"layers.{t}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [t * size, (t + 1) * size]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path / f"shard-{rank + 1:05}-model-00001-of-00001.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for t in range(count):
                file.write(os.urandom(size))


def join(source, target, threads):
    from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
    from safetensors import safe_open
    os.makedirs(target)
    with safe_open(next(pathlib.Path(source).glob("*.safetensors")), "pt") as file:
        mapping = {name: 1 for name in file.keys()}
    before = time.process_time()
    start = time.perf_counter()
    consolidate_safetensors_files(source, target, mapping, num_threads=threads)
    seconds = time.perf_counter() - start
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"seconds {seconds:.3f} rss_mib {rss:.0f} cpu {time.process_time() - before:.2f}")


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    else:
        join(sys.argv[2], sys.argv[3], int(sys.argv[4]))
