"""One torch.save file per rank with DTensors of older torch releases (other modules, another DeviceMesh).

    /path/to/python-with-torch-2.4.1 old_rank_files_cases.py [root]
Writes <root>/torchsave/torch-<version>_dtensor_rankfiles_<mesh>. The oracle is what the tensors were cut from.
"""
import os, sys
import torch
from common import *

NAME = torch.__version__.split("+")[0]


def content(dims):
    """name -> (whole tensor, placements)"""
    try:
        from torch.distributed.tensor import Shard, Replicate
    except ImportError:  # before 2.5
        from torch.distributed._tensor import Shard, Replicate
    g = torch.Generator().manual_seed(5)
    r = lambda *s: torch.randn(*s, generator=g)
    fill = lambda *p: list(p) + [Replicate()] * (len(dims) - len(p))
    out = {"rows": (r(7, 3), fill(Shard(0))), "cols": (r(4, 5), fill(Shard(1))), "whole": (r(5), fill(Replicate())),
           "one_row": (r(1, 2), fill(Shard(0))), "bf16": (r(9, 2).bfloat16(), fill(Shard(0))), "empty": (torch.empty(0, 3), fill(Shard(0)))}
    if len(dims) == 2:
        out.update({"grid": (r(6, 8), [Shard(0), Shard(1)]), "both": (r(11, 2), [Shard(0), Shard(0)]), "inner": (r(5, 2), [Replicate(), Shard(0)])})
    return out


def state(tensors):
    return {"model": tensors, "optim": {"state": {k: {"step": torch.tensor(3.0), "exp_avg": t + 1} for k, t in tensors.items()},
                                        "param_groups": [{"lr": 0.1, "params": list(tensors)}]}, "epoch": 3}


def w_run(rank, world, case, dims):
    from torch.distributed.device_mesh import init_device_mesh
    try:
        from torch.distributed.tensor import distribute_tensor
    except ImportError:
        from torch.distributed._tensor import distribute_tensor
    mesh = init_device_mesh("cpu", dims, mesh_dim_names=("a", "b")[:len(dims)])
    whole = content(dims)
    with inside(case):
        torch.save(state({k: distribute_tensor(t, mesh, p) for k, (t, p) in whole.items()}), "checkpoint/rank%d.pt" % rank)


def run(root, dims):
    world = 1
    for d in dims:
        world *= d
    case = fresh_case(root, "torchsave", "torch-%s_dtensor_rankfiles_%s" % (NAME, "x".join(map(str, dims))))
    os.makedirs(case + "/checkpoint")
    spawn(w_run, world, case, dims)
    write_expected(case, "torch-zip-dtensor", "torch", NAME, flatten(state({k: t for k, (t, _) in content(dims).items()})), world,
                   {"shape": list(dims), "dim_names": ["a", "b"][:len(dims)]},
                   notes="one torch.save file per rank; hand-made DTensors, whose classes lie in modules of this release")


def main(root):
    run(root, (2, 2))


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_ROOT))
