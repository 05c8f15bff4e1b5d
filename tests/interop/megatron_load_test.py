"""Megatron-core's dist_checkpointing.load reads the torch_dist folders that ckpt-reshard and ckpt-convert wrote: every rank's
pieces, at other tensor-parallel sizes than they were saved at. PyTorch's torch.load reads the rank files of megatron-torch,
and rank by rank they are what Megatron's own cut of the whole is."""
import os, pathlib, sys, tempfile
from support import SAMPLES, compare, done, samples, sha256, tool
import torch
from common import spawn

try:
    from megatron.core import dist_checkpointing  # noqa: F401
    HAVE = True
except ImportError as e:
    HAVE, WHY = False, e


def skip_without_megatron():
    if not HAVE:
        print(f"skipped: megatron-core is not installed ({WHY}); tests/interop/requirements.txt names it")
        sys.exit(77)


def shape_of(expected):
    """rows, cols, layers of the samples' toy state."""
    layers, rows, cols = next(t["shape"] for t in expected["tensors"] if t["key"] == "decoder.layers.mlp.linear_fc1.weight")
    return rows, cols, layers


def load_rank(rank, world, folder, tp, shape, want):
    if not torch.cuda.is_available():
        torch.cuda.current_device = lambda: "cpu"
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.mapping import ShardedObject
    from megatron_cases import full_state, plan
    zeros = {k: torch.zeros_like(v) for k, v in full_state(0, *shape).items()}
    asked = {k: v for k, v in plan(zeros, rank, tp, world // tp).items() if not isinstance(v, ShardedObject)}
    got = dist_checkpointing.load(asked, folder)
    for key, value in plan(want, rank, tp, world // tp).items():
        if hasattr(value, "global_shape") and not isinstance(value, ShardedObject):
            assert torch.equal(got[key], value.data), f"{folder}: rank {rank} of {world}: {key}"
    assert got["iteration"] == 100 and got["optimizer_groups"][0]["step"] == 7, got["iteration"]


def whole(source):
    """The state as plain tensors, through safetensors: {key: tensor}."""
    from safetensors.torch import load_file
    with tempfile.TemporaryDirectory() as d:
        out = os.path.join(d, "x.safetensors")
        tool("ckpt-convert", source, out, "--values", "drop", "--opaque", "drop")
        return load_file(out)


def torch_dist():
    n = 0
    for case, expected in samples("megatron"):
        if "torch_dist" not in case.name:
            continue
        want = whole(case / "checkpoint")
        compare(want, expected, case.name)
        for mesh, world in (("tp=1", 2), ("tp=3,dp=2", 1), ("tp=2,pp=3", 2)):
            with tempfile.TemporaryDirectory() as d:
                out = os.path.join(d, "iter_0000100")
                tool("ckpt-reshard", case / "checkpoint", out, "--mesh", mesh)
                spawn(load_rank, world, out, world, shape_of(expected), want)
                n += 1
    done(n, "resharded torch_dist folders loaded by dist_checkpointing.load")


def rank_files():
    """The script that made the sample, run for other sizes, against what ckpt-reshard wrote."""
    import megatron_cases
    n = 0
    for case, expected in samples("megatron"):
        if "legacy" not in case.name:
            continue
        flat = {t["key"]: t for t in expected["tensors"]}
        for tp in (1, 2, 3):
            with tempfile.TemporaryDirectory() as d:
                out = pathlib.Path(d) / "out"
                tool("ckpt-reshard", case / "checkpoint", out, "--mesh", f"tp={tp}")
                ranks = [torch.load(out / f"mp_rank_{t:02d}" / "model_optim_rng.pt", weights_only=True) for t in range(tp)]
                axes = expected["tp_split_axis"]
                for key in ranks[0]["model"]:
                    parts = [r["model"][key] for r in ranks]
                    joined = torch.cat(parts, axes[key]) if key in axes else parts[0]
                    assert key in axes or all(torch.equal(p, parts[0]) for p in parts), key
                    assert sha256(joined) == flat["model." + key]["sha256"], f"{case.name} tp={tp}: {key}"
                assert all(r["iteration"] == 100 for r in ranks)
                n += 1
    assert megatron_cases
    done(n, "sizes of rank files put together by PyTorch")


if __name__ == "__main__":
    rank_files()
    skip_without_megatron()
    torch_dist()
