"""Run under an older PyTorch: its stock DCP reader loads what ckpt-reshard wrote, its torch.load(weights_only=True) what ckpt-convert wrote."""
import functools, io, pathlib, tempfile
from support import compare, compare_values, done, samples, tool
import torch
from common import flatten, load_dcp


@functools.cache
def takes_back(dtype):
    """Whether this release saves a tensor of this dtype and loads it with weights_only: 2.4 has uint16, but does neither."""
    file = io.BytesIO()
    try:
        torch.save(torch.zeros(2).to(getattr(torch, dtype)), file)
        file.seek(0)
        torch.load(file, weights_only=True)
        return True
    except Exception:
        return False


def why_not(expected):
    dtypes = sorted({t["dtype"] for t in expected["tensors"]})
    if expected.get("flat_params"):
        return "flat buffers without names"
    if lacking := [d for d in dtypes if not hasattr(torch, d)]:
        return f"this release has no {', '.join(lacking)}"
    if refused := [d for d in dtypes if not takes_back(d)]:
        return f"this release refuses its own {', '.join(refused)}"  # its DCP reader loads with weights_only, too
    return ""


n = 0
for case, expected in samples("dcp", "dcp-old"):
    if reason := why_not(expected):
        print(f"skipped {case.name}: {reason}")
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
