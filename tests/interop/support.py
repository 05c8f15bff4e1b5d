"""What the interoperability tests share: the built commands, the samples with their oracles, gloo processes.

The oracle of every test is PyTorch (or the safetensors library) itself; the samples' own generators are imported for the model."""
import hashlib, io, json, os, pathlib, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "sample_checkpoints"
BIN = pathlib.Path(os.environ.get("TESSERA_BIN", ROOT / "build" / "bin"))
sys.path.insert(0, str(SAMPLES / "generate"))


def tool(name, *args, status=0):
    """Runs one of our commands; returns its stdout. Any other exit status fails the test with what it said."""
    p = subprocess.run([str(BIN / name), *map(str, args)], capture_output=True, text=True, timeout=120)
    if p.returncode != status:
        raise AssertionError(f"{name} {' '.join(map(str, args))}: exit {p.returncode}, expected {status}\n{p.stderr[-2000:]}")
    return p.stdout


def samples(*formats):
    """(path of the checkpoint, expected.json) of every case of these folders."""
    for fmt in formats:
        for f in sorted((SAMPLES / fmt).glob("*/expected.json")):
            yield f.parent, json.loads(f.read_text())


def sha256(tensor):
    from common import tensor_bytes
    return hashlib.sha256(tensor_bytes(tensor)).hexdigest()


def compare(flat, expected, what):
    """flat: {name: tensor or value} as a framework loaded it. Fails unless tensors equal the oracle's, name by name."""
    import torch
    got = {k: (str(v.dtype).replace("torch.", ""), list(v.shape), sha256(v)) for k, v in flat.items() if torch.is_tensor(v)}
    want = {t["key"]: (t["dtype"], t["shape"], t["sha256"]) for t in expected["tensors"]}
    bad = [k for k in sorted(set(got) | set(want)) if got.get(k) != want.get(k)]
    if bad:
        raise AssertionError(f"{what}: {len(bad)} tensors differ, first {bad[0]}: got {got.get(bad[0])}, want {want.get(bad[0])}")
    return len(got)


def compare_hashes(report, expected, what):
    """A report of `ckpt-inspect hash` against an oracle, name by name."""
    got = {t["name"]: (t["dtype"], t["shape"], t["sha256"]) for t in report["tensors"]}
    want = {t["key"]: (t["dtype"], t["shape"], t["sha256"]) for t in expected["tensors"]}
    bad = [k for k in sorted(set(got) | set(want)) if got.get(k) != want.get(k)]
    if bad:
        raise AssertionError(f"{what}: {len(bad)} tensors differ, first {bad[0]}: got {got.get(bad[0])}, want {want.get(bad[0])}")


def compare_values(flat, expected, what):
    import torch
    from common import jsonable
    as_oracle = lambda v: {"__bytesio_hex__": v.getvalue().hex()} if isinstance(v, io.BytesIO) else jsonable(v)
    got = {k: as_oracle(v) for k, v in flat.items() if not torch.is_tensor(v)}
    bad = [k for k, v in expected["values"].items() if got.get(k, "missing") != v]
    if bad:
        raise AssertionError(f"{what}: {len(bad)} values differ, first {bad[0]}: got {got.get(bad[0], 'missing')}, want {expected['values'][bad[0]]}")
    return len(got)


def done(count, what):
    if not count:
        raise SystemExit(f"no {what} was checked")
    print(f"{count} {what}")
