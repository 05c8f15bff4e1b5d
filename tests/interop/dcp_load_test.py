"""PyTorch's own DCP reader loads what ckpt-reshard wrote: into a plain state dict on one process, and into FSDP2-sharded
targets on two processes, from checkpoints resharded to 1, 2, 3 and 16 ranks."""
import os, pathlib, tempfile
from support import SAMPLES, compare, compare_values, done, samples, tool
import torch, torch.distributed.checkpoint as dcp
from common import VISIBLE, flatten, load_dcp, make_adamw, spawn

WORLD_SIZES = (1, 2, 3, 16)


def plain():
    n = 0
    for case, expected in samples("dcp", "olmo-core"):
        if expected.get("flat_params"):
            continue  # FSDP1 LOCAL: flat buffers without names load nowhere but at their own world size
        for w in WORLD_SIZES:
            with tempfile.TemporaryDirectory() as d:
                out = pathlib.Path(d) / "out"
                tool("ckpt-reshard", case / "checkpoint", out, "--world-size", w)
                flat = flatten(load_dcp(str(out)))
                compare(flat, expected, f"{case.name} -> {w}")
                compare_values(flat, expected, f"{case.name} -> {w}")
                n += 1
    done(n, "resharded checkpoints loaded by PyTorch into plain state dicts")


def into_fsdp2(rank, world, source, expected):
    from dcp_cases import build, restore, state
    m, opt, _ = build(VISIBLE, world, "fsdp")
    restore(m, opt, source)
    full = state(m, opt, full_state_dict=True, cpu_offload=True)
    if rank == 0:
        compare(flatten(full), expected, source)


def sharded():
    import json
    expected = json.loads((SAMPLES / "dcp/fsdp2_w4/expected.json").read_text())
    n = 0
    for w in WORLD_SIZES:
        with tempfile.TemporaryDirectory() as d:
            out = os.path.join(d, "out")
            tool("ckpt-reshard", SAMPLES / "dcp/fsdp2_w4/checkpoint", out, "--world-size", w)
            spawn(into_fsdp2, 2, out, expected)
            n += 1
    done(n, "resharded checkpoints loaded into FSDP2 modules on 2 processes")


if __name__ == "__main__":
    plain()
    sharded()
