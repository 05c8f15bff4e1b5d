"""OLMo's local sharded checkpoints, written and joined by OLMo's own code on FSDP1 models.

    python olmo_local_cases.py OLMO/olmo/checkpoint.py [root] [seed]

The first argument is that file of github.com/allenai/OLMo: its classes LocalShardedCheckpointer and _FlatParamShard are taken out of it as they are, so
that nothing else of OLMo has to be installed. What they need of it (paths, logs, the rank) is below, and the flat parameter of a module is looked up as
PyTorch 2.3 and newer have it, which OLMo's code refuses to guess. The oracle is its unshard_checkpoint().
"""
import ast, os, sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from common import *


def olmo_classes(source):
    import contextlib as _, functools, logging, tempfile as _t
    from collections import defaultdict
    from concurrent.futures import ThreadPoolExecutor, as_completed
    from dataclasses import dataclass, field, replace
    from pathlib import Path
    from typing import Any, Dict, Generator, List, Optional, Set, Tuple, Union
    from packaging import version
    wanted = ("_FlatParamShard", "LocalShardedCheckpointer")
    tree = ast.parse(open(source).read())
    body = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in wanted]
    assert [node.name for node in body] == list(wanted), "another file"

    class Progress:
        def __enter__(self): return self
        def __exit__(self, *a): return False
        def track(self, items, **k): return items

    names = dict(torch=torch, FSDP=FSDP, Checkpointer=object, Path=Path, version=version, replace=replace, dataclass=dataclass,
                 defaultdict=defaultdict, Any=Any, Dict=Dict, Generator=Generator, List=List, Optional=Optional, Set=Set, Tuple=Tuple, Union=Union,
                 ThreadPoolExecutor=ThreadPoolExecutor, as_completed=as_completed, log=logging.getLogger("olmo"), get_progress_bar=Progress,
                 PathOrStr=Union[str, Path], nn=torch.nn, Optimizer=torch.optim.Optimizer, FlatParamHandle=object,
                 _LocalShardedCheckpointerMetadata=object, TrainConfig=object,
                 resource_path=lambda folder, name, local_cache=None, progress=None: Path(folder) / name,
                 load_state_dict=lambda folder, name, local_cache=None, map_location=None: torch.load(Path(folder) / name, weights_only=False))
    module = ast.Module(body=[ast.ImportFrom("__future__", [ast.alias("annotations")], 0)] + body, type_ignores=[])
    exec(compile(ast.fix_missing_locations(module), source, "exec"), names)

    class Local(names["LocalShardedCheckpointer"]):
        thread_count = 1
        def __init__(self): pass
        def _fsdp_handles(self, model):
            return [model._handle] if getattr(model, "_handle", None) is not None else []
        def _load_metadata(self, path, local_cache=None):
            world = int(open(os.path.join(path, "metadata.yaml")).read().split("world_size: ")[1])
            return type("Metadata", (), {"world_size": world})

    return Local


def optimizer_of(model):
    """Groups by decay, each with its parameters' names, as olmo/optim.py makes them."""
    named = list(model.named_parameters())
    groups = []
    for matrices, decay in ((True, 0.1), (False, 0.0)):
        members = [(n, p) for n, p in named if (n.endswith("weight") and "norm" not in n) == matrices]
        groups.append({"params": [p for _, p in members], "param_names": [n for n, _ in members], "weight_decay": decay, "sharded": True})
    return torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), foreach=False)


def save(rank, world, case, source, seed):
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    model = FSDP(make_model(dict(VISIBLE, seed=seed)), auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True, device_id=torch.device("cpu"))
    optimizer = optimizer_of(model)
    train(model, optimizer, dict(VISIBLE, seed=seed), 2, rank)
    os.chdir(case)
    if rank == 0:
        for folder in ("model", "optim", "train"):
            os.makedirs("checkpoint/" + folder)
        open("checkpoint/metadata.yaml", "w").write("world_size: %d\n" % world)
        open("checkpoint/config.yaml", "w").write("model:\n  d_model: 6\n")
    dist.barrier()
    local = olmo_classes(source)()
    torch.save(local._get_flat_param_state_to_save(model), f"checkpoint/model/rank{rank}.pt")
    torch.save(optimizer.state_dict(), f"checkpoint/optim/rank{rank}.pt")
    trainer = {"epoch": 0, "global_step": 2, "checkpoints": ["step1"], "rng": {"torch": torch.full((4,), rank, dtype=torch.uint8)}}
    torch.save(trainer, f"checkpoint/train/rank{rank}.pt")


if __name__ == "__main__":
    source = os.path.abspath(sys.argv[1])
    root = os.path.abspath(sys.argv[2] if len(sys.argv) > 2 else DEFAULT_ROOT)
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1234
    for world in (2, 3):
        case = fresh_case(root, "olmo-local", f"fsdp1_w{world}")
        spawn(save, world, case, source, seed)
        load = torch.load
        torch.load = lambda *a, **k: load(*a, **{**k, "weights_only": False})
        model, optim, trainer = olmo_classes(source)().unshard_checkpoint(case + "/checkpoint")
        torch.load = load
        optim["state"] = dict(optim["state"])
        flat = flatten({"model": model, "optim": optim, "train": trainer})
        rng = flat.pop("train.rng.torch")
        for rank in range(world):
            flat[f"train.rng.torch.rank_{rank}"] = rng + rank
        write_expected(case, "olmo-local", "olmo", "59a53e3f", flat, world_size=world, torch_version=torch.__version__,
                       notes="LocalShardedCheckpointer's own code, FSDP1 with use_orig_params; joined by its unshard_checkpoint()")
