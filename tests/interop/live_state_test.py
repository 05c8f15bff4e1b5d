"""PyTorch's own DCP reader loads what tessera::save wrote from raw memory of several ranks, and tessera::load reads what
PyTorch's DCP writer wrote, at other numbers of ranks."""
import os, pathlib, subprocess, tempfile
from support import BIN, done, tool
import torch, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

EXAMPLE = BIN / "example_live_state"


def example(verb, path, ranks):
    p = subprocess.run([str(EXAMPLE), verb, str(path), str(ranks)], capture_output=True, text=True, timeout=120)
    if p.returncode:
        raise AssertionError(f"{EXAMPLE.name} {verb} {path} {ranks}: {p.stderr}")


def expected():
    weight = torch.arange(60, dtype=torch.float32).reshape(10, 6)
    return {"model": {"layer.weight": weight, "layer.bias": torch.arange(6) * 0.5},
            "optim": {"state": {"layer.weight": {"momentum_buffer": -weight}}}, "step": 100}


def same(got, want, path=""):
    if isinstance(want, dict):
        assert set(got) == set(want), f"{path}: {sorted(got)} for {sorted(want)}"
        for k in want:
            same(got[k], want[k], f"{path}.{k}")
    elif torch.is_tensor(want):
        assert torch.equal(got, want) and got.dtype == want.dtype, f"{path}: {got}"
    else:
        assert got == want, f"{path}: {got!r} for {want!r}"


def ours_in_pytorch():
    n = 0
    for ranks in (1, 2, 3, 7, 12):
        with tempfile.TemporaryDirectory() as d:
            path = pathlib.Path(d) / "run" / "step_1"
            example("save", path, ranks)
            blank = expected()
            for t in (blank["model"]["layer.weight"], blank["model"]["layer.bias"],
                      blank["optim"]["state"]["layer.weight"]["momentum_buffer"]):
                t.zero_()
            blank["step"] = 0
            dcp.load(blank, checkpoint_id=str(path))  # into a template
            same(blank, expected())
            dcp_to_torch_save(str(path), os.path.join(d, "all.pt"))  # the tree from the metadata alone
            same(torch.load(os.path.join(d, "all.pt"), weights_only=True), expected())
            tool("ckpt-inspect", "verify", path, "--require-sums")
            example("load", path, 5)
            n += 1
    done(n, "live states saved by ranks and loaded by PyTorch")


def pytorchs_in_ours():
    n = 0
    for ranks in (1, 3, 11):
        with tempfile.TemporaryDirectory() as d:
            dcp.save(expected(), checkpoint_id=os.path.join(d, "a"))
            example("load", os.path.join(d, "a"), ranks)
            n += 1
    with tempfile.TemporaryDirectory() as d:  # and any other format
        torch.save(expected(), os.path.join(d, "a.pt"))
        example("load", os.path.join(d, "a.pt"), 4)
        n += 1
    done(n, "checkpoints of PyTorch loaded into live memory")


if __name__ == "__main__":
    ours_in_pytorch()
    pytorchs_in_ours()
