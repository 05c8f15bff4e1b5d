"""Run under an older PyTorch: its stock DCP reader loads what ckpt-reshard wrote, its torch.load(weights_only=True) what ckpt-convert wrote."""
import pathlib, tempfile
from support import compare, compare_values, done, samples, tool
import torch
from common import flatten, load_dcp

n = 0
for case, expected in samples("dcp", "dcp-old"):
    dtypes = {t["dtype"] for t in expected["tensors"]}
    if expected.get("flat_params") or any(not hasattr(torch, d) for d in dtypes):
        print(f"skipped {case.name}: {'flat buffers without names' if expected.get('flat_params') else 'a dtype this release lacks'}")
        continue
    for w in (1, 3):
        with tempfile.TemporaryDirectory() as d:
            out = pathlib.Path(d) / "out"
            tool("ckpt-reshard", case / "checkpoint", out, "--world-size", w)
            flat = flatten(load_dcp(str(out))) if case.parent.name == "dcp" else {}
            if flat:
                compare(flat, expected, f"{case.name} -> {w}")
                compare_values(flat, expected, f"{case.name} -> {w}")
            file = pathlib.Path(d) / "out.pt"
            tool("ckpt-convert", out, file, "--opaque", "drop")  # an io.BytesIO is refused by weights_only
            torch.load(file, weights_only=True)
            n += 1
done(n, f"resharded checkpoints loaded by PyTorch {torch.__version__}")
