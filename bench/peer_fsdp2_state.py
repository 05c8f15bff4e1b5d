"""The model of fsdp_state.cc under PyTorch's FSDP2, saved and loaded with DCP by processes over Gloo, measured alike.
usage: peer_fsdp2_state.py DIR PROCESSES LAYERS WIDTH ROUNDS"""
import ctypes
import json
import os
import shutil
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def kib_of(key):
    with open("/proc/self/status") as status:
        return next(float(line.split()[1]) for line in status if line.startswith(key))


def own_kib(key):
    """Without mapped program files, as fsdp_state.cc measures."""
    return kib_of(key) - kib_of("RssFile:")


def seconds_of(work):
    dist.barrier()
    start = time.perf_counter()
    work()
    dist.barrier()
    return time.perf_counter() - start


def run(rank, folder, world, layers, width, rounds, port):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    mesh = init_device_mesh("cpu", (world,))
    model = nn.Sequential(*(Layer(width) for _ in range(layers)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model(torch.ones(2, width)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

    def state():
        parameters, moments = get_state_dict(model, optimizer)
        return {"model": parameters, "optim": moments}

    def load(path):
        into = state()
        dcp.load(into, checkpoint_id=path)
        set_state_dict(model, optimizer, model_state_dict=into["model"], optim_state_dict=into["optim"])

    def restart_peak():
        with open("/proc/self/clear_refs", "w") as refs:
            refs.write("5")

    def most_mib():
        extra = torch.tensor((own_kib("VmHWM:") - before) / 1024)
        dist.all_reduce(extra, op=dist.ReduceOp.MAX)
        return extra.item()

    saves, loads, saving, loading = [], [], 0.0, 0.0
    ctypes.CDLL(None).malloc_trim(0)  # what training left free would hide what is taken
    restart_peak()
    before = own_kib("VmRSS:")
    for number in range(rounds + 1):
        path = os.path.join(folder, f"torch_{number}")
        restart_peak()
        save = seconds_of(lambda: dcp.save(state(), checkpoint_id=path))
        saving = max(saving, most_mib())
        restart_peak()
        loaded = seconds_of(lambda: load(path))
        loading = max(loading, most_mib())
        dist.barrier()
        if rank == 0:
            shutil.rmtree(path)
        if number:
            saves.append(save)
            loads.append(loaded)
    if rank == 0:
        print(json.dumps({"save_s": statistics.median(saves), "load_s": statistics.median(loads), "save_mib": saving, "load_mib": loading,
                          "extra_mib": max(saving, loading)}), flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    target, (processes, depth, size, times) = sys.argv[1], map(int, sys.argv[2:6])
    os.makedirs(target, exist_ok=True)
    mp.spawn(run, (target, processes, depth, size, times, 20000 + os.getpid() % 20000), nprocs=processes)
