"""Tensors of torchao's subclasses, which are made of several: optimizer state in 8 bits, 4 bits and fp8, and weights of the quantization API.

    python torchao_cases.py [root] [seed]

The parts of such a tensor stand in expected.json as `NAME#PART`, as the loaded object's attributes are. Nothing is compiled: torch.compile is replaced
by the function itself, which changes no bytes on a CPU.
"""
import os, sys
import torch
import torch.nn as nn
import torchao
from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8
from common import *

OPTIMIZERS = {"adamw8bit": AdamW8bit, "adamw4bit": AdamW4bit, "adamwfp8": AdamWFp8}


def is_wrapper(v):
    return torch.is_tensor(v) and hasattr(v, "__tensor_flatten__") and type(v).__module__.startswith("torchao")


def with_parts(flat):
    """{dotted key: tensor or value}: the parts of wrappers in their places."""
    out = {}
    for key, value in flat.items():
        if not is_wrapper(value):
            out[key] = value
            continue
        for part in value.__tensor_flatten__()[0]:
            inner = getattr(value, part)
            if inner is not None:
                out[key + "#" + part] = inner
    return out


def build(seed, mesh=None):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128))
    if mesh is not None:
        from torch.distributed.fsdp import fully_shard
        fully_shard(model, mesh=mesh)
    return model


def steps(model, optimizer, seed, count=2):
    g = torch.Generator().manual_seed(seed)
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(4, 64, generator=g)).square().mean().backward()
        optimizer.step()


def plain_case(root, kind, seed):
    model = build(seed)
    optimizer = OPTIMIZERS[kind](model.parameters(), lr=1e-2)
    steps(model, optimizer, seed)
    write_file(root, kind, {"model": model.state_dict(), "optim": optimizer.state_dict()}, "state of two weights in blocks")


def write_file(root, name, saved, notes):
    case = fresh_case(root, "torchao", name)
    os.makedirs(case + "/checkpoint")
    with inside(case):
        torch.save(saved, "checkpoint/file.pt")
        back = torch.load("checkpoint/file.pt", weights_only=False)
    flat = {k: v for k, v in with_parts(flatten(back)).items() if torch.is_tensor(v)}
    write_expected(case, "torch-zip", "torchao", torchao.__version__, flat, notes=notes, torch_version=torch.__version__)


def weights_case(root, seed):
    from torchao.quantization import Float8WeightOnlyConfig, Int4Tensor, Int8WeightOnlyConfig, IntxWeightOnlyConfig, NF4Tensor, quantize_
    saved = {}
    for name, config in (("int8", Int8WeightOnlyConfig()), ("float8", Float8WeightOnlyConfig()), ("intx", IntxWeightOnlyConfig())):
        torch.manual_seed(seed)
        layer = nn.Sequential(nn.Linear(64, 16)).to(torch.bfloat16)
        quantize_(layer, config)
        saved[name] = layer[0].state_dict()
    g = torch.Generator().manual_seed(seed)
    saved["nf4.weight"] = NF4Tensor.from_tensor(torch.randn(64, 64, generator=g), 64, 2)
    codes = torch.randint(0, 255, (16, 32), dtype=torch.uint8, generator=g)
    saved["int4.weight"] = Int4Tensor(codes, torch.rand(2, 16, generator=g).bfloat16(), torch.rand(2, 16, generator=g).bfloat16(), [1, 32],
                                      torch.Size([16, 64]))
    write_file(root, "weights", saved, "int8, float8, intx, nf4 and int4 weights, each an object of its class")


def rank_state(rank, world, case, kind, seed, with_files):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    torch.compile = lambda f=None, **k: f
    model = build(seed, init_device_mesh("cpu", (world,), mesh_dim_names=("dp",)))
    optimizer = OPTIMIZERS[kind](model.parameters(), lr=1e-2)
    steps(model, optimizer, seed + rank)
    saved = dict(zip(("model", "optim"), get_state_dict(model, optimizer)))
    with inside(case):
        dcp.save(saved, checkpoint_id="checkpoint")
        if with_files:
            os.makedirs("rank_files", exist_ok=True)
            torch.save(saved, f"rank_files/rank{rank}.pt")
    flat = {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in flatten(saved).items() if torch.is_tensor(v)}
    if rank == 0:
        parts = with_parts(flat)
        write_expected(case, "torch-dcp", "torchao", torchao.__version__, parts, world_size=world, torch_version=torch.__version__,
                       notes="FSDP2: each rank's state is an object around blocks of its rows; the parts are as DTensor.full_tensor() joins them")
    dist.barrier()


def sharded_case(root, kind, world, seed, with_files):
    case = fresh_case(root, "torchao", f"{kind}_fsdp2_w{world}")
    spawn(rank_state, world, case, kind, seed, with_files)
    if not with_files:
        return
    files = fresh_case(root, "torchao", f"{kind}_ranks_w{world}")
    shutil.move(case + "/rank_files", files + "/checkpoint")
    doc = json.load(open(case + "/expected.json"))
    doc.update(format="torch-rank-files", same_content_as=f"torchao/{kind}_fsdp2_w{world}")
    json.dump(doc, open(files + "/expected.json", "w"), indent=1)


if __name__ == "__main__":
    root = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_ROOT)
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 21
    torch.compile = lambda f=None, **k: f
    for kind in OPTIMIZERS:
        plain_case(root, kind, seed)
    weights_case(root, seed)
    sharded_case(root, "adamw8bit", 2, seed, True)
    sharded_case(root, "adamw4bit", 2, seed, False)
