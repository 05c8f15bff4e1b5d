"""torch.load(weights_only=True) takes every torch-save file we write, the safetensors library every safetensors file: from every DCP,
torch.save, safetensors and OLMo-core sample that the target can hold."""
import json, pathlib, tempfile
from support import compare, compare_values, done, samples, sha256, tool
import torch
from common import flatten

LEAVES_OUT = {  # cases that the target cannot hold, and why; each is refused with exit 5, which is checked too
    "torchsave/torchscript": "TorchScript",
}


def checkpoint(case):
    inside = [p for p in (case / "checkpoint").iterdir()]
    return inside[0] if len(inside) == 1 and inside[0].is_file() else case / "checkpoint"


def cases():
    for case, expected in samples("dcp", "dcp-old", "torchsave", "safetensors", "olmo-core"):
        if "rankfiles" not in case.name:
            yield case, expected


def torch_save():
    n = 0
    for case, expected in cases():
        with tempfile.TemporaryDirectory() as d:
            out = pathlib.Path(d) / "out.pt"
            if f"{case.parent.name}/{case.name}" in LEAVES_OUT:
                tool("ckpt-convert", checkpoint(case), out, status=5)
                continue
            opaque = "numpy" in case.name or "objects" in case.name  # NumPy objects, an io.BytesIO: weights_only refuses them
            tool("ckpt-convert", checkpoint(case), out, *(["--opaque", "drop"] if opaque else []))
            flat = flatten(torch.load(out, weights_only=True))
            flat = {k: (v.to_dense() if torch.is_tensor(v) and v.layout != torch.strided else v) for k, v in flat.items()}
            compare(flat, expected, case.name)
            if not opaque and case.parent.name == "torchsave" and "nested" not in case.name:
                compare_values(flat, expected, case.name)
            n += 1
    done(n, "torch-save files loaded with weights_only=True")


def safetensors():
    from safetensors.torch import load_file
    n = refused = 0
    for case, expected in cases():
        with tempfile.TemporaryDirectory() as d:
            out = pathlib.Path(d) / "out.safetensors"
            key = f"{case.parent.name}/{case.name}"
            if key in LEAVES_OUT or any(t["dtype"] in ("complex32", "complex128", "qint8", "quint8") for t in expected["tensors"]):
                tool("ckpt-convert", checkpoint(case), out, status=5)
                refused += 1
                continue
            tool("ckpt-convert", checkpoint(case), out, "--opaque", "drop")
            # A tensor inside a tuple is stored beside the others as "<name>#<n>".
            compare({k: v for k, v in load_file(out).items() if "#" not in k}, expected, case.name)
            n += 1
    done(n, "safetensors files loaded by the safetensors library")
    print(f"{refused} cases refused with exit 5 because safetensors lacks their dtype or cannot hold their root")


def hf_shards():
    from safetensors import safe_open
    case, expected = next((c, e) for c, e in samples("dcp") if c.name == "fsdp2_w4")
    model = [t for t in expected["tensors"] if t["key"].startswith("model.")]
    with tempfile.TemporaryDirectory() as d:
        out = pathlib.Path(d) / "hf"
        tool("ckpt-convert", case / "checkpoint", out, "--to", "hf", "--max-shard-size", "1KiB")
        index = json.loads((out / "model.safetensors.index.json").read_text())
        flat, total = {}, 0
        for name, file in index["weight_map"].items():
            with safe_open(out / file, "pt") as f:
                assert f.metadata().get("format") == "pt", file
                flat["model." + name] = f.get_tensor(name)
                total += flat["model." + name].numel() * flat["model." + name].element_size()
        assert index["metadata"]["total_size"] == total, (index["metadata"], total)
        assert len(set(index["weight_map"].values())) > 1, "one shard only"
        compare(flat, {"tensors": model}, "hf")
        done(len(flat), "tensors of a Hugging Face folder in several shards")


def odd_states():
    """States whose containers DCP cannot hold as they are: PyTorch's own offline reader must still rebuild what is left of them."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    t = torch.arange(6.0).reshape(2, 3)
    cases = [  # what was saved, what PyTorch makes of the DCP
        ([t, 1], {"0": t, "1": 1}),
        ([{"a": t}, [t, [2, t]]], {"0": {"a": t}, "1": [t, [2, t]]}),
        ({"a": {3: t, True: 1, (1, 2): 5}}, {"a": {"3": t, "True": 1, "(1, 2)": 5}}),
    ]
    for state, expected in cases:
        with tempfile.TemporaryDirectory() as d:
            pt, dcp, back = (pathlib.Path(d) / n for n in ("in.pt", "dcp", "back.pt"))
            torch.save(state, pt)
            tool("ckpt-convert", pt, dcp, "--to", "torch-dcp", "--verify")
            dcp_to_torch_save(dcp, back)
            got = torch.load(back, weights_only=False)
            if repr(got) != repr(expected):
                raise AssertionError(f"{state!r} became {got!r}, expected {expected!r}")
    done(len(cases), "odd states rebuilt by PyTorch from the DCP we wrote")


def tensors_in_values():
    """Tensors in tuples and lists are tensors of the safetensors file, whatever their names, and stand where they stood after the way back. --to hf
    has all of them, or is refused; values beside them in a model stop neither."""
    from collections import Counter, OrderedDict
    from safetensors.torch import load_file
    from torch.utils import _pytree
    t = torch.arange(6.0).reshape(2, 3)
    kinds = {  # state, exit of --to hf
        "tuple": ({"w": t, "pair": (t + 1, t[0])}, 5), "list": ({"w": t, "all": [t + 1, t[0].int()]}, 0), "mixed": ({"w": t, "all": [2, t + 1, "x"]}, 0),
        "nested": ({"w": t, "deep": {"a": (1, [t + 1], OrderedDict(k=t[0]))}}, 5), "only_tuple": ((t, t + 1), 5), "only_list": ([t, t + 1], 0),
        "list_of_tuples": ([t, (t + 1,)], 5), "bare": (t, 0), "value_in_a_model": ({"model": {"w": t, "n": 3}, "step": 1}, 0),
        "optimizer": ({"model": {"w": t}, "optimizer": {"state": {0: {"exp_avg": t, "exp_avg_sq": t, "history": (t[0], t[1])}}, "param_groups": [{"lr": 0.1, "params": [0]}]}}, 0)}
    count = lambda ts: Counter((str(x.dtype), tuple(x.shape), sha256(x)) for x in ts)
    for name, (state, hf) in kinds.items():
        with tempfile.TemporaryDirectory() as d:
            pt, out, back, folder = (pathlib.Path(d) / n for n in ("in.pt", "out.safetensors", "back.pt", "hf"))
            torch.save(state, pt)
            tensors = [x for x in _pytree.tree_leaves(state) if torch.is_tensor(x)]
            tool("ckpt-convert", pt, out, "--verify")
            assert count(load_file(out).values()) == count(tensors), name
            tool("ckpt-convert", out, back, "--verify")
            got = torch.load(back, weights_only=True)
            if repr(got) != repr(state):
                raise AssertionError(f"{name}: {state!r} became {got!r}")
            tool("ckpt-convert", pt, folder, "--to", "hf", status=hf)
            if hf == 0:
                of_model = tensors if name != "optimizer" else tensors[:1]
                written = [x for f in folder.glob("*.safetensors") for x in load_file(f).values()]
                assert count(written) == count(of_model), name
    done(len(kinds), "kinds of state with tensors in values")


if __name__ == "__main__":
    odd_states()
    tensors_in_values()
    torch_save()
    safetensors()
    hf_shards()
