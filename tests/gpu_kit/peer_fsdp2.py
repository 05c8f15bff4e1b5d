#!/usr/bin/env python3
"""The same figures as `gpu_kit speed`, of PyTorch's FSDP2, and how ours compare.

usage: peer_fsdp2.py OUT_FOLDER [--device cuda]

Reads OUT_FOLDER/speed.json, where that is, and writes OUT_FOLDER/peer.json after each measurement. Each runs in a
process of its own, so that one that fails takes no other with it. Models and sizes are those of tests/gpu_kit/models.cc.
"""
import json
import os
import statistics
import subprocess
import sys
import time

MEASUREMENTS = ("memory", "launch", "gpt 1", "gpt 8")


def scaled(nn, torch, units):
    """The units in a row, and a parameter of the root's own."""
    class Row(nn.Module):
        def __init__(self):
            super().__init__()
            self.units, self.scale = nn.ModuleList(units), nn.Parameter(torch.ones(1))

        def forward(self, x):
            for unit in self.units:
                x = unit(x)
            return x * self.scale

    return Row()


def small_units(nn, torch, count):
    class Unit(nn.Module):
        def __init__(self):
            super().__init__()
            self.matrices = nn.ParameterList([nn.Parameter(torch.randn(32, 32)) for _ in range(10)])

        def forward(self, x):
            for matrix in self.matrices:
                x = x * matrix[0]
            return x

    return scaled(nn, torch, [Unit() for _ in range(count)])


def gpt(nn, F, torch, layers, width, heads, vocabulary, context):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            rows, length, _ = x.shape
            parts = self.qkv(self.n1(x)).view(rows, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
            return x + self.down(F.gelu(self.up(self.n2(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

        def forward(self, ids):
            x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Gpt()


def measure(what, device):
    """Figures as {name: (value, unit)}. In a process of its own."""
    import torch
    import torch.distributed as dist
    import torch.nn as nn
    import torch.nn.functional as F
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    on_gpu = device == "cuda"
    wait = torch.cuda.synchronize if on_gpu else (lambda: None)
    ranks = 1 if what == "gpt 1" else 8
    if ranks == 1:
        dist.init_process_group("nccl" if on_gpu else "gloo", rank=0, world_size=1, store=dist.HashStore())
    else:
        from torch.testing._internal.distributed.fake_pg import FakeStore
        dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    mesh = init_device_mesh(device, (ranks,))
    out = {}

    def cost(step, steps):
        for _ in range(5):
            step()
        host, wall, gpu = [], [], []
        for _ in range(steps):
            wait()
            start = time.perf_counter()
            step()
            host.append(time.perf_counter() - start)
            wait()
            wall.append(time.perf_counter() - start)
        for _ in range(3 if on_gpu else 0):
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(int(1700 * min(2e6 * statistics.median(host) + 1000, 400e3)))
            first.record()
            step()
            last.record()
            last.synchronize()
            gpu.append(first.elapsed_time(last) * 1e3)
        return 1e6 * statistics.median(host), 1e6 * statistics.median(wall), statistics.median(gpu) if gpu else None

    if what == "launch":
        count, steps = (100, 15) if on_gpu else (10, 3)
        x = torch.randn(4, 32, device=device, requires_grad=True)

        def step_of(net):
            def step():
                net(x).sum().backward()
                for parameter in net.parameters():
                    parameter.grad = None
            return step

        plain_host, _, _ = cost(step_of(small_units(nn, torch, count).to(device)), steps)
        net = small_units(nn, torch, count).to(device)
        for unit in net.units:
            fully_shard(unit, mesh=mesh)
        fully_shard(net, mesh=mesh)
        host, wall, gpu = cost(step_of(net), steps)
        out["launch FSDP2: host us per unit"] = ((host - plain_host) / count, "us")
        out["launch FSDP2: wall us per step"] = (wall, "us")
        if gpu is not None:
            out["launch FSDP2: GPU us per step, launched ahead"] = (gpu, "us")
            out["launch FSDP2: GPU idle"] = (max(0.0, 1 - gpu / wall), "of the step")
    elif what == "memory":
        width = 2048 if on_gpu else 64
        net = scaled(nn, torch, [nn.Linear(width, width, bias=False) for _ in range(12)]).to(device)
        for layer in net.units:
            fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
        x = torch.randn(8, width, device=device)
        for i in range(8):
            if i == 3 and on_gpu:
                wait()
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            net(x).sum().backward()
            for parameter in net.parameters():
                parameter.grad = None
        wait()
        if on_gpu:
            out["memory FSDP2: peak allocated"] = (torch.cuda.max_memory_allocated(), "bytes")
            out["memory FSDP2: peak reserved"] = (torch.cuda.max_memory_reserved(), "bytes")
    else:
        size, rows, steps = ((24, 1280, 20, 32768, 1024), 8, 8) if on_gpu else ((2, 32, 2, 64, 16), 2, 1)
        torch.manual_seed(0)
        model = gpt(nn, F, torch, *size).to(device)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
        ids = torch.randint(size[3], (rows, size[4]), device=device)
        targets = torch.randint(size[3], (rows, size[4]), device=device)
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        wall = []
        for i in range(steps + 3):
            wait()
            start = time.perf_counter()
            for _ in range(2):
                optimizer.zero_grad()
                F.cross_entropy(model(ids).float().view(-1, size[3]), targets.view(-1)).backward()
                optimizer.step()
            wait()
            if i >= 3:
                wall.append((time.perf_counter() - start) / 2)
        name = f"GPT bf16 FSDP2, {ranks} rank{'' if ranks == 1 else 's'}"
        out[name + ": tokens/s"] = (ids.numel() / statistics.median(wall), "tokens/s")
        if on_gpu:
            out[name + ": peak allocated"] = (torch.cuda.max_memory_allocated(), "bytes")
    return out


# A ratio, what stands above and what below; above 1 ours is better.
RATIOS = [
    ("host time per unit, FSDP2 / ours flat", "launch FSDP2: host us per unit", "launch ours flat: host us per unit"),
    ("host time per unit, FSDP2 / ours per parameter", "launch FSDP2: host us per unit",
     "launch ours per parameter: host us per unit"),
    ("peak allocated, FSDP2 / ours", "memory FSDP2: peak allocated", "memory: peak allocated"),
    ("peak reserved, FSDP2 / ours", "memory FSDP2: peak reserved", "memory: peak reserved"),
] + [
    (f"tokens/s, ours {layout} / FSDP2, {ranks}", f"GPT bf16 ours {layout}, {ranks}: tokens/s",
     f"GPT bf16 FSDP2, {ranks}: tokens/s")
    for layout in ("flat", "per parameter") for ranks in ("1 rank", "8 ranks")
]


def main():
    if len(sys.argv) >= 4 and sys.argv[1] == "--measure":
        print("FIGURES " + json.dumps(measure(sys.argv[2], sys.argv[3])), flush=True)
        os._exit(0)  # a fake group leaves threads behind
    out_folder = sys.argv[1]
    device = sys.argv[3] if len(sys.argv) > 3 else "cuda"
    figures, failures, ratios, passed = {}, {}, {}, 0

    def write():
        path = os.path.join(out_folder, "peer.json")
        with open(path + ".new", "w") as file:
            json.dump({"part": "peer", "passed": passed, "failed": len(failures), "failures": failures, "ratios": ratios,
                       "figures": [{"name": n, "value": v, "unit": u} for n, (v, u) in figures.items()]}, file, indent=1)
        os.replace(path + ".new", path)

    for what in MEASUREMENTS:
        done = subprocess.run([sys.executable, os.path.abspath(__file__), "--measure", what, device],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("FIGURES ")]
        if lines:
            passed += 1
            figures.update(json.loads(lines[-1][8:]))
        else:
            failures[what] = done.stderr[-1500:]
            print(f"peer: FAILED {what}: {done.stderr.strip().splitlines()[-1:]}", flush=True)
        write()
    for name, (value, unit) in figures.items():
        print(f"peer: {name} = {value:.6g} {unit}")
    try:
        with open(os.path.join(out_folder, "speed.json")) as file:
            ours = {each["name"]: each["value"] for each in json.load(file)["figures"]}
    except OSError:
        ours = {}
    both = {**ours, **{name: value for name, (value, _) in figures.items()}}
    for name, above, below in RATIOS:
        if both.get(above) and both.get(below):
            ratios[name] = both[above] / both[below]
            print(f"peer: {name} = {ratios[name]:.3g}")
    write()
    print(f"peer: {passed} passed, {len(failures)} failed", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
