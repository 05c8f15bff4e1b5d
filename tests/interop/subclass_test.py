"""Tensors of subclasses that wrap others, as PyTorch itself pickles them: one around a single tensor of its own shape is that tensor (a weight that
is quantized when FSDP gathers it), one around several (8-bit optimizer state) stays what it is in every format of pickles, and stops nothing else. State
in blocks that ranks saved is cut at other ranks' rows, and PyTorch loads it there."""
import pathlib, tempfile
import block_state
from support import done, sha256, tool
import torch, torch.distributed.checkpoint as dcp, json
from torch.utils._pytree import tree_map


class Wrapper(torch.Tensor):
    """What torch.Tensor._make_wrapper_subclass needs to be saved: every operation goes to the tensors inside."""

    @staticmethod
    def __new__(cls, shape, *args, **attributes):
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32)

    def __init__(self, shape, **attributes):
        self.__dict__.update(attributes)

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        name = func._overloadpacket.__name__
        if name in ("detach", "clone", "_to_copy", "alias", "view"):
            kept = {k: v.clone() if torch.is_tensor(v) else v for k, v in args[0].__dict__.items()}
            return cls(args[0].shape, **kept)
        if name in ("is_pinned",):
            return False
        raise NotImplementedError(name)

    def __repr__(self, **kwargs):
        return type(self).__name__


class Gathered(Wrapper):
    pass


class Blocks(Wrapper):
    pass


def blocks(seed):
    g = torch.Generator().manual_seed(seed)
    return Blocks((64, 64), codes=torch.randint(0, 255, (64, 64), dtype=torch.uint8, generator=g), scale=torch.rand(16, generator=g),
                  qmap=torch.rand(256, generator=g), signed=True, block_size=256)


def state():
    g = torch.Generator().manual_seed(3)
    weight = torch.rand(64, 64, generator=g)
    return {"model": {"a.weight": Gathered((64, 64), _tensor=weight, _config=torch.Size([1])), "a.bias": torch.rand(64, generator=g)},
            "optimizer": {"state": {"a.weight": {"step": torch.tensor(2.0), "exp_avg": blocks(1), "exp_avg_sq": blocks(2)},
                                    "a.bias": {"step": torch.tensor(2.0), "exp_avg": torch.rand(64), "exp_avg_sq": torch.rand(64)}},
                          "param_groups": [{"lr": torch.tensor(0.1), "params": ["a.weight", "a.bias"]}]}}


def hashes(path):
    return {t["name"]: t["sha256"] for t in json.loads(tool("ckpt-inspect", "hash", path, "--format", "json"))["tensors"]}


def check_blocks(found, wanted, what):
    assert type(found) is Blocks, f"{what}: {type(found)}"
    for part in ("codes", "scale", "qmap"):
        assert torch.equal(getattr(found, part), getattr(wanted, part)), f"{what}: {part}"
    assert (found.signed, found.block_size) == (True, 256), what


def source(kind, at, saved):
    path = at / (kind + (".pt" if kind == "torch-save" else ""))
    if kind == "torch-save":
        torch.save(saved, path)
    else:
        dcp.save(saved, checkpoint_id=path)
    return path


if __name__ == "__main__":
    checks = 0
    with tempfile.TemporaryDirectory() as d:
        at = pathlib.Path(d)
        saved = state()
        weight = sha256(saved["model"]["a.weight"]._tensor)
        for kind in ("torch-save", "torch-dcp"):
            path = source(kind, at, saved)
            tool("ckpt-inspect", "verify", path)
            assert hashes(path)["model.a.weight"] == weight, kind
            model = at / (kind + ".hf")
            tool("ckpt-convert", path, model, "--to", "hf")
            assert set(hashes(model)) == {"a.weight", "a.bias"} and hashes(model)["a.weight"] == weight, kind
            for target in ("torch-save", "torch-dcp"):
                out = at / f"{kind}.{target}{'.pt' if target == 'torch-save' else ''}"
                tool("ckpt-convert", path, out, "--to", target, "--verify")
                assert hashes(out)["model.a.weight"] == weight
                if target == "torch-save":
                    loaded = torch.load(out, weights_only=False)
                else:
                    loaded = state()  # PyTorch puts what it reads in its place
                    loaded["optimizer"]["state"]["a.weight"].update(exp_avg=blocks(8), exp_avg_sq=blocks(9))
                    loaded["model"]["a.weight"] = torch.zeros(64, 64)
                    dcp.load(loaded, checkpoint_id=out, no_dist=True)
                assert sha256(loaded["model"]["a.weight"]) == weight, f"{kind} to {target}"
                for leaf, seed in (("exp_avg", 1), ("exp_avg_sq", 2)):
                    check_blocks(loaded["optimizer"]["state"]["a.weight"][leaf], blocks(seed), f"{kind} to {target}: {leaf}")
                checks += 1
            # A weight that grows, and codes in blocks that nobody can grow with it.
            grown = at / (kind + ".grown")
            tool("ckpt-convert", path, grown, "--to", "torch-dcp", "--vocab-size", "80", "--vocab-tensor", "a.weight", status=5)
            # A part for each of two ranks cannot be made of them either; the optimizer may begin anew.
            tool("ckpt-convert", path, at / (kind + ".ranks"), "--to", "torch-rank-files", "--world-size", "2", status=5)
            tool("ckpt-convert", path, grown, "--to", "torch-dcp", "--vocab-size", "80", "--vocab-tensor", "a.weight", "--optim", "drop", "--verify")
            names = {t["name"] for t in json.loads(tool("ckpt-inspect", "ls", grown, "--format", "json"))["tensors"]}
            assert "optimizer.state.a.bias.exp_avg" in names and not any("a.weight.exp" in n for n in names), names
            checks += 2
        # Two ranks' state becomes three's and one's, in both formats, and back.
        from common import spawn
        saved, files = at / "w2", at / "ranks2"
        files.mkdir()
        spawn(block_state.save, 2, str(saved), str(files), 5)
        want = {k: v for k, v in hashes(saved).items()}
        assert want == hashes(files) and set(want) == {"optim.w#codes", "optim.w#scale", "optim.w#qmap"}, want
        assert want["optim.w#codes"] == sha256(block_state.whole(96, 64, 5).codes)
        for world in (3, 1):
            cut, cut_files = at / f"w{world}", at / f"ranks{world}"
            tool("ckpt-reshard", files if world == 3 else saved, cut, "--world-size", str(world), "--to", "torch-dcp", "--verify")
            tool("ckpt-reshard", saved if world == 3 else files, cut_files, "--world-size", str(world), "--to", "torch-rank-files", "--verify")
            assert hashes(cut) == want and hashes(cut_files) == want
            spawn(block_state.load, world, str(cut), str(cut_files), 5)
            checks += 2
        tool("ckpt-reshard", saved, at / "w7", "--world-size", "7", status=5)
    done(checks, f"conversions with wrapper subclasses of PyTorch {torch.__version__}")
