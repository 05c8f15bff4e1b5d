"""Modules of torch.nn that torch.save pickled whole are what their state_dict() is: names in order, bytes, results of conversion. Modules are
made at random from every class of torch.nn.modules; PyTorch's own state_dict(), saved beside, is the oracle."""
import collections, importlib, inspect, io, json, pathlib, pkgutil, random, sys, tempfile, types, warnings
from support import BIN, done, tool
import torch
from safetensors.torch import load_file
from torch import nn

warnings.simplefilter("ignore")
READ = ("torch.nn.modules.", "torch.nn.parallel.", "torch.nn.utils.parametriz")  # lib/encoding/torch_modules.cc has the same


def module_classes():
    found = set()
    for m in pkgutil.walk_packages(nn.__path__, "torch.nn."):
        try:
            found |= {c for c in vars(importlib.import_module(m.name)).values() if inspect.isclass(c) and issubclass(c, nn.Module)}
        except ImportError:
            pass
    return sorted(found, key=lambda c: (c.__module__, c.__name__))


def check_classes(classes):
    """What is read by structure must not do more than nn.Module to make a state_dict(), nor keep state where nn.Module does not."""
    own = [c for c in classes if c.__module__.startswith(READ)]
    assert len(own) > 150, len(own)
    for c in own:
        for name in ("state_dict", "_save_to_state_dict", "get_extra_state", "__reduce__", "__reduce_ex__"):
            lazy = "Lazy" in c.__name__  # keeps parameters without a shape as they are: same names
            assert getattr(c, name) is getattr(nn.Module, name) or (lazy and name == "_save_to_state_dict"), (c, name)
    others = {c.__name__ for c in classes if c.__module__.startswith("torch.ao.nn.quantized") and "_save_to_state_dict" in vars(c)}
    assert "LinearPackedParams" in others  # why they are not read


def arguments(c, rng):
    """What a class of torch.nn.modules is made with, by the names of its parameters; None where they do not do."""
    n = rng.choice([2, 4, 8])
    known = {"in_features": n, "out_features": 2 * n, "in_channels": n, "out_channels": 2 * n, "kernel_size": 3, "num_features": n,
             "num_embeddings": 7, "embedding_dim": n, "embed_dim": n, "num_heads": 2, "d_model": n, "nhead": 2, "normalized_shape": n,
             "num_groups": 2, "num_channels": n, "input_size": n, "hidden_size": 3, "in1_features": n, "in2_features": 3, "n_classes": 20,
             "cutoffs": [4, 10], "dim_feedforward": 4, "mode": "LSTM", "num_chunks": 4, "min_val": -1.0, "max_val": 1.0, "threshold": 1.0,
             "value": 0.5, "padding": 1, "output_size": 2, "upscale_factor": 2, "downscale_factor": 2, "lambd": 0.5, "dim": 1,
             "unflattened_size": (1, n), "groups": 2, "size": 3, "scale_factor": 2, "normalized_shapes": n, "num_layers": 1}
    try:
        signature = inspect.signature(c)
    except ValueError:
        return None
    out = {}
    for p in signature.parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        if p.name == "bias" and rng.random() < 0.3:
            out["bias"] = False
        elif p.name in ("affine", "track_running_stats", "batch_first", "bidirectional", "add_bias_kv") and rng.random() < 0.5:
            out[p.name] = rng.random() < 0.5
        elif p.default is p.empty:
            if p.name not in known:
                return None
            out[p.name] = known[p.name]
    return out


def made(c, rng):
    if c in (nn.LSTM, nn.GRU, nn.RNN):
        return c(4, 3, num_layers=rng.randint(1, 2), bidirectional=rng.random() < 0.5, bias=rng.random() < 0.7)
    if c in (nn.TransformerEncoder, nn.TransformerDecoder):
        layer = nn.TransformerEncoderLayer if c is nn.TransformerEncoder else nn.TransformerDecoderLayer
        return c(layer(4, 2, 8), rng.randint(1, 2), norm=nn.LayerNorm(4))
    args = arguments(c, rng)
    if args is None:
        return None
    try:
        return c(**args)
    except (TypeError, ValueError, AssertionError, NotImplementedError, RuntimeError):
        return None


def tree(classes, rng, depth):
    kind = rng.randrange(6 if depth else 2)
    leaf = lambda: next(m for m in (made(rng.choice(classes), rng) for _ in range(1000)) if m is not None)
    if kind < 2:
        return leaf()
    children = [tree(classes, rng, depth - 1) for _ in range(rng.randint(1, 4))]
    if kind == 2:
        return nn.Sequential(*children)
    if kind == 3:
        return nn.ModuleList(children + [children[0]])  # one module under two names
    if kind == 4:
        return nn.ModuleDict({f"k{i}": m for i, m in enumerate(children)})
    out = nn.Sequential(collections.OrderedDict((f"part{i}", m) for i, m in enumerate(children)))
    out.register_buffer("table", torch.arange(rng.randint(1, 5)))
    out.register_buffer("scratch", torch.rand(3), persistent=False)
    out.register_buffer("absent", None)
    out.register_parameter("none", None)
    out.register_parameter("own", nn.Parameter(torch.rand(2)))
    out.plain = torch.rand(2)
    out.note = {"config": [1, 2.5, "x"]}
    return out


def tie(module, rng):
    """Some parameters become one."""
    owners = [(m, n) for m in module.modules() for n, p in m._parameters.items() if p is not None]
    for m, n in owners:
        same = [(a, b) for a, b in owners if a._parameters[b].shape == m._parameters[n].shape]
        a, b = rng.choice(same)
        if rng.random() < 0.3:
            m._parameters[n] = a._parameters[b]


def saved(value, path, form):
    torch.save(value, path, **form)
    return path


def hashed(path):
    report = json.loads(tool("ckpt-inspect", "hash", path, "--format", "json"))
    return report["root"], {t["name"]: (t["dtype"], t["shape"], t["sha256"]) for t in report["tensors"]}


def names(path):
    return [t["name"] for t in json.loads(tool("ckpt-inspect", "ls", path, "--format", "json"))["tensors"]]


def same_files(a, b):
    one, two = load_file(a), load_file(b)
    assert list(one) == list(two) and all(torch.equal(one[k].view(torch.uint8) if one[k].dim() else one[k], two[k].view(torch.uint8) if two[k].dim() else two[k]) for k in one)


def check(module, form, key):
    with tempfile.TemporaryDirectory() as d:
        return check_in(pathlib.Path(d), module, form, key)


def check_in(folder, module, form, key):
    whole = {key: module, "epoch": 3} if key else module
    state = {key: module.state_dict(), "epoch": 3} if key else module.state_dict()
    a, b = saved(whole, folder / "whole.pt", form), saved(state, folder / "state.pt", form)
    if not module.state_dict() and not key:
        return 0
    assert hashed(a) == hashed(b)
    assert names(a) == names(b)
    assert names(a) == [f"{key}.{k}" if key else k for k in module.state_dict()]
    if not module.state_dict():
        return 1
    results = []
    for source in (a, b):
        out = folder / (source.stem + ".safetensors")
        tool("ckpt-convert", source, out, "--verify")
        results.append(out)
        tool("ckpt-convert", source, folder / (source.stem + "_dcp"), "--to", "torch-dcp", "--world-size", "2", "--verify")
        tool("ckpt-convert", source, folder / (source.stem + "_again.pt"))
    same_files(*results)
    assert hashed(folder / "whole_dcp") == hashed(folder / "state_dcp") == hashed(a)
    # What we write of it loads into such a module, and without running anything.
    again = torch.load(folder / "whole_again.pt", weights_only=True)
    fresh = torch.load(a, weights_only=False)
    fresh = fresh[key] if key else fresh
    with torch.no_grad():
        for t in [*fresh.parameters(), *fresh.buffers()]:
            t.zero_()
    fresh.load_state_dict(again[key] if key else again)
    assert all(torch.equal(x, y) for x, y in zip(fresh.state_dict().values(), module.state_dict().values()))
    return 1


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)


def shout(module, state, prefix, local):
    state[prefix + "extra"] = torch.ones(1)


def special(folder):
    """Kinds of their own."""
    n = 0
    spectral = nn.Sequential(torch.nn.utils.spectral_norm(nn.Linear(3, 4)))
    with torch.no_grad():
        spectral(torch.rand(2, 3))
    n += check(spectral, {}, "")
    weight = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(3, 4)))
    n += check(weight, {}, "model")
    lists = nn.ModuleDict({"p": nn.ParameterList([torch.rand(2), torch.rand(3)]), "d": nn.ParameterDict({"x": torch.rand(2)})})
    n += check(lists, {}, "model")
    n += check(nn.DataParallel(nn.Linear(2, 2)), {}, "")
    hooked = nn.Sequential(nn.Linear(2, 2))
    hooked.register_forward_hook(shout)  # says nothing about state
    n += check(hooked, {}, "")
    n += check(nn.Linear(2, 3, dtype=torch.bfloat16), {}, "model")
    n += check(nn.Transformer(4, 2, 1, 1, 8), {}, "model")
    # Parametrized modules cannot be pickled at all.
    parametrized = torch.nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    try:
        torch.save(parametrized, io.BytesIO())
        raise AssertionError("parametrized modules can be pickled now")
    except RuntimeError:
        pass
    # Of a class elsewhere: refused by name at the root, one value below a key, and beside others.
    torch.save(Block(), folder / "own.pt")
    assert tool("ckpt-inspect", "ls", folder / "own.pt", status=5) == ""
    torch.save({"model": Block(), "w": torch.ones(2)}, folder / "below.pt")
    assert names(folder / "below.pt") == ["w"]
    torch.save(nn.Sequential(nn.Linear(2, 2), Block()), folder / "mixed.pt")
    assert names(folder / "mixed.pt") == ["0.weight", "0.bias"]
    for to in ("safetensors", "hf"):
        tool("ckpt-convert", folder / "mixed.pt", folder / "lost", "--to", to, status=5)
    # A folder of Hugging Face's has no place for a module's class and options.
    torch.save({"model": nn.Linear(2, 2), "epoch": 3}, folder / "below_key.pt")
    torch.save(nn.Linear(2, 2), folder / "root.pt")
    for name in ("below_key.pt", "root.pt"):
        tool("ckpt-convert", folder / name, folder / "hub", "--to", "hf", status=5)
    torch.save(nn.DataParallel(Block()), folder / "wrapped.pt")
    tool("ckpt-inspect", "ls", folder / "wrapped.pt", status=5)
    # Hooks that change what state_dict() gives are not run, so that it is not known.
    changed = nn.Linear(2, 2)
    changed._register_state_dict_hook(shout)
    torch.save(changed, folder / "changed.pt")
    tool("ckpt-inspect", "ls", folder / "changed.pt", status=5)
    # In a tuple and in another object a module is a part of that value, as every tensor there.
    torch.save({"w": torch.ones(2), "pair": (nn.Linear(2, 2),), "args": types.SimpleNamespace(m=nn.Linear(2, 2))}, folder / "inside.pt")
    assert names(folder / "inside.pt") == ["w"]
    tool("ckpt-convert", folder / "inside.pt", folder / "inside_again.pt", "--verify")
    loaded = torch.load(folder / "inside_again.pt", weights_only=False)
    assert isinstance(loaded["pair"][0], nn.Linear) and isinstance(loaded["args"].m, nn.Linear)
    return n + 6


if __name__ == "__main__":
    seed, count = int(sys.argv[1]) if len(sys.argv) > 1 else 1, int(sys.argv[2]) if len(sys.argv) > 2 else 12
    rng = random.Random(seed)
    torch.manual_seed(seed)
    classes = module_classes()
    check_classes(classes)
    leaves = [c for c in classes if c.__module__.startswith("torch.nn.modules.") and not c.__name__.startswith(("_", "Lazy"))]
    able = [c for c in leaves if made(c, rng) is not None]
    assert len(able) > 100, sorted(c.__name__ for c in set(leaves) - set(able))
    n = 0
    for i in range(count):
        module = nn.ModuleDict({"a": tree(able, rng, 3), "b": tree(able, rng, 2)})
        tie(module, rng)
        form = rng.choice([{}, {"_use_new_zipfile_serialization": False}, {"pickle_protocol": 4}])
        n += check(module, form, rng.choice(["", "model"]))
    with tempfile.TemporaryDirectory() as d:  # every class once
        for start in range(0, len(able), 8):
            m = nn.ModuleList([made(c, rng) for c in able[start:start + 8]])
            a, b = saved(m, pathlib.Path(d) / "a.pt", {}), saved({"x": m.state_dict()}, pathlib.Path(d) / "b.pt", {})
            if m.state_dict():
                assert [k for k in m.state_dict()] == names(a)
                n += 1
    with tempfile.TemporaryDirectory() as d:
        n += special(pathlib.Path(d))
    done(n, "modules are read as their state_dict()")
