"""Writes a transformer-like fp32 + Adam checkpoint with PyTorch DCP from W gloo ranks: random bits, so nothing compresses or dedups.

usage: make_checkpoint.py OUT --gb 4 --world 4 [--layers 24]"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard


def parameter_shapes(gigabytes, layers):
    """Names and shapes whose fp32 weights and two Adam moments add up to about `gigabytes`."""
    per_copy = gigabytes * 1e9 / 3 / 4
    width = max(64, int((per_copy / (12 * layers + 16)) ** 0.5) // 64 * 64)
    shapes = {"embed.weight": (16 * width, width)}
    for i in range(layers):
        shapes[f"layers.{i}.attention.qkv.weight"] = (3 * width, width)
        shapes[f"layers.{i}.attention.out.weight"] = (width, width)
        shapes[f"layers.{i}.feed_forward.up.weight"] = (4 * width, width)
        shapes[f"layers.{i}.feed_forward.up.bias"] = (4 * width,)
        shapes[f"layers.{i}.feed_forward.down.weight"] = (width, 4 * width)
        shapes[f"layers.{i}.norm.weight"] = (width,)
    return shapes


def save_rank(rank, options):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options.port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=options.world)
    mesh = init_device_mesh("cpu", (options.world,))
    random = torch.Generator().manual_seed(1000 + rank)

    def sharded(shape):
        rows = -(-shape[0] // options.world)
        begin, end = min(rank * rows, shape[0]), min((rank + 1) * rows, shape[0])
        bits = torch.randint(-2**31, 2**31 - 1, (end - begin, *shape[1:]), generator=random, dtype=torch.int32)
        local = torch.nan_to_num(bits.view(torch.float32), 0.0, 1.0, -1.0)
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=torch.Size(shape), stride=stride)

    shapes = parameter_shapes(options.gb, options.layers)
    moments = lambda shape: {"step": torch.tensor(100.0), "exp_avg": sharded(shape), "exp_avg_sq": sharded(shape)}
    group = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1, "params": list(shapes)}
    dcp.save({"model": {name: sharded(shape) for name, shape in shapes.items()},
              "optim": {"state": {name: moments(shape) for name, shape in shapes.items()}, "param_groups": [group]}},
             checkpoint_id=options.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--gb", type=float, default=4)
    parser.add_argument("--world", type=int, default=4)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--port", type=int, default=29671)
    options = parser.parse_args()
    mp.spawn(save_rank, args=(options,), nprocs=options.world)
