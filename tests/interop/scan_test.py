"""scan against PyTorch: whatever torch.load takes by default is safe, ordinary objects are never dangerous, and what PyTorch would run is."""
import argparse, collections, datetime, decimal, enum, fractions, io, json, pathlib, pickle, random, subprocess, tempfile, types, uuid, warnings
from support import BIN, done
import numpy as np
import torch
from torch._weights_only_unpickler import _get_allowed_globals

warnings.simplefilter("ignore")


def scan(folder):
    p = subprocess.run([str(BIN / "ckpt-inspect"), "scan", folder, "--format", "json"], capture_output=True, text=True, timeout=120)
    assert p.returncode in (0, 1, 4), p.stderr
    return {pathlib.Path(f["path"]).relative_to(folder).as_posix(): f for f in json.loads(p.stdout)["files"]}


def call(module, name):
    return b"\x80\x02c" + module.encode() + b"\n" + name.encode() + b"\n)R."


def objects():
    """Ordinary things of training scripts."""
    weight = torch.nn.Parameter(torch.ones(2))
    adam = torch.optim.AdamW([weight])
    return {
        "tensor": torch.ones(2), "parameter": weight, "half": torch.ones(2, dtype=torch.bfloat16), "sparse": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(), "quantized": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "device": torch.device("cpu"), "dtype": torch.float16, "size": torch.Size([1, 2]), "generator": torch.Generator(),
        "module": torch.nn.Linear(2, 2), "state": adam.state_dict(), "schedule": torch.optim.lr_scheduler.StepLR(adam, 1),
        "function": torch.nn.functional.relu, "version": torch.__version__, "max": torch.ones(2, 2).max(0),
        "buffer": torch.nn.Buffer(torch.ones(1)), "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "array": np.arange(3), "scalar": np.float32(1), "structured": np.zeros(2, [("a", "i4")]), "masked": np.ma.array([1, 2], mask=[0, 1]),
        "rng": np.random.default_rng(1), "random_state": np.random.RandomState(1), "objects": np.array([1, "a"], object),
        "namespace": argparse.Namespace(a=1), "ordered": collections.OrderedDict(a=1), "deque": collections.deque([1]),
        "counter": collections.Counter("a"), "default": collections.defaultdict(list, a=[1]), "date": datetime.datetime(2024, 1, 1),
        "delta": datetime.timedelta(1), "decimal": decimal.Decimal("1.5"), "fraction": fractions.Fraction(1, 2), "uuid": uuid.UUID(int=5),
        "path": pathlib.PurePosixPath("a"), "simple": types.SimpleNamespace(a=1), "random": random.Random(1), "flag": enum.Flag,
        "complex": 1j, "set": {1}, "bytes": bytearray(b"x"), "slice": slice(1, 2),
    }


def accepted(path):
    try:
        torch.load(path, weights_only=True)
        return True
    except Exception:
        return False


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as d:
        d = pathlib.Path(d)
        for name in _get_allowed_globals():
            (d / f"{name}.pkl").write_bytes(call(*name.rsplit(".", 1)))
        verdicts = scan(d)
        bad = [k for k, f in verdicts.items() if f["verdict"] != "safe"]
        assert not bad and len(verdicts) > 100, f"torch.load takes them: {bad}"
    taken = 0
    with tempfile.TemporaryDirectory() as d:
        d = pathlib.Path(d)
        for name, value in objects().items():
            torch.save({"x": value}, d / f"{name}.pt")
            torch.save({"x": value}, d / f"{name}_legacy.pt", _use_new_zipfile_serialization=False)
            for protocol in (2, 4, 5):
                (d / f"{name}_{protocol}.pkl").write_bytes(pickle.dumps(value, protocol))
        for name, f in scan(d).items():
            assert f["verdict"] != "dangerous", f"{name}: {f['findings']}"
            assert not any("broken" in x["message"] for x in f["findings"]), f"{name}: {f['findings']}"
            if name.endswith(".pt") and accepted(d / name):
                taken += 1
                assert f["verdict"] == "safe", f"{name}: {f['findings']}"
    assert taken > 20, taken
    with tempfile.TemporaryDirectory() as d:
        d = pathlib.Path(d)

        class Evil:
            def __reduce__(self):
                import timeit
                return timeit.timeit, ("open(%r, 'w')" % str(d / "made"), "pass", timeit.default_timer, 1)

        torch.save({"w": torch.ones(2), "extra": Evil()}, d / "evil.pt")
        assert scan(d)["evil.pt"]["verdict"] == "dangerous"
        p = subprocess.run([str(BIN / "ckpt-convert"), d / "evil.pt", d / "dcp", "--to", "torch-dcp"], capture_output=True, text=True)
        assert p.returncode == 4 and not (d / "dcp").exists(), p.stderr
        p = subprocess.run([str(BIN / "ckpt-convert"), d / "evil.pt", d / "dcp", "--to", "torch-dcp", "--opaque", "drop"], capture_output=True)
        assert p.returncode == 0, p.stderr
        import torch.distributed.checkpoint as dcp
        state = {"w": torch.zeros(2)}
        dcp.load(state, checkpoint_id=str(d / "dcp"), no_dist=True)
        assert torch.equal(state["w"], torch.ones(2)) and not (d / "made").exists()
    done(len(verdicts) + taken, "globals and files that torch.load takes are safe to scan")
