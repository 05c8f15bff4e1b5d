"""Training resumed on 2 processes from our 4 -> 2 reshard takes the same next 3 AdamW steps, bit for bit, as training resumed from the
4-rank checkpoint by PyTorch's own resharding load, and as resumed from PyTorch's own save at 2 ranks."""
import os, tempfile
from support import SAMPLES, done, sha256, tool
import torch
from common import VISIBLE, flatten, spawn, train


def resume(rank, world, source, report):
    from dcp_cases import build, restore, state
    m, opt, _ = build(VISIBLE, world, "fsdp")
    restore(m, opt, source)
    train(m, opt, dict(VISIBLE, seed=77), 3, rank)
    full = flatten(state(m, opt, full_state_dict=True, cpu_offload=True))
    if rank == 0:
        torch.save({k: sha256(v) for k, v in full.items() if torch.is_tensor(v)}, report)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as d:
        ours = os.path.join(d, "ours")
        tool("ckpt-reshard", SAMPLES / "dcp/fsdp2_w4/checkpoint", ours, "--world-size", 2)
        reports = {}
        for name, source in (("ours", ours), ("pytorch 4 -> 2 at load", SAMPLES / "dcp/fsdp2_w4/checkpoint"),
                             ("pytorch saved at 2", SAMPLES / "dcp/fsdp2_w2/checkpoint"), ("start", None)):
            if source is None:
                continue
            report = os.path.join(d, "report.pt")
            spawn(resume, 2, str(source), report)
            reports[name] = torch.load(report)
    first = reports.pop("ours")
    for name, other in reports.items():
        bad = [k for k in first if first[k] != other.get(k)]
        if bad or set(first) != set(other):
            raise SystemExit(f"resumed from ours and from {name}: {len(bad)} tensors differ after 3 steps, first {bad[:1]}")
    done(len(first), "tensors bit-equal after 3 resumed AdamW steps, against 2 resumes by PyTorch")
