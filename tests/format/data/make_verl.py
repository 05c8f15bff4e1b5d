"""Checkpoints as verl's FSDPCheckpointManager leaves them (volcengine/verl, verl/utils/checkpoint): per rank the sharded weights at the
top of one file, torch.optim's own state_dict() in a second, scheduler and random state in a third. Under FSDP1 that optimizer state
is runs of flat parameters. expected.json: what PyTorch gathers, and FSDP1's record of its flat parameters.

    python make_verl.py      writes verl/<case>/ beside this script
"""
import json
import os
import shutil
import sys

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "..", "sample_checkpoints", "generate"))
import common  # noqa: E402
import dcp_cases  # noqa: E402
import fsdp1_cases  # noqa: E402

OUT = os.path.join(HERE, "verl")
CFG = dict(common.VISIBLE, vocab=5, dim=3, hidden=4, layers=2, out=2, groups=False)


def save(folder, rank, world, model, optim):
    os.makedirs(folder, exist_ok=True)
    torch.manual_seed(rank)
    extra = {"lr_scheduler": {"last_epoch": 2}, "rng": {"cpu": torch.get_rng_state()}}
    for part, state in (("model", model), ("optim", optim), ("extra_state", extra)):
        torch.save(state, os.path.join(folder, "%s_world_size_%d_rank_%d.pt" % (part, world, rank)))


def expect(case, world, full, layout):
    flat = common.flatten(full)
    tensors = [common.tensor_entry(k, v) for k, v in flat.items() if torch.is_tensor(v)]
    with open(os.path.join(case, "expected.json"), "w") as f:
        json.dump({"world_size": world, "flat_params": layout, "tensors": tensors, "values": {}}, f, indent=1)


def fsdp1(rank, world, case, orig):
    m, opt = fsdp1_cases.wrap(CFG, world, orig, (world,))
    common.train(m, opt, CFG, 2, rank)
    with fsdp1_cases.kind(m, "SHARDED"):
        weights = m.state_dict()
    save(os.path.join(case, "checkpoint"), rank, world, weights, opt.state_dict())
    full, layout = fsdp1_cases.collect(m, opt, "FULL"), fsdp1_cases.flat_layout(m)
    if rank == 0:
        expect(case, world, full, {k: {"fqns": v["fqns"], "shapes": v["shapes"]} for k, v in layout.items()})


def fsdp2(rank, world, case, _):
    m, opt, _ = dcp_cases.build(CFG, world, "fsdp")
    common.train(m, opt, CFG, 2, rank)
    save(os.path.join(case, "checkpoint"), rank, world, m.state_dict(), opt.state_dict())
    full = dcp_cases.state(m, opt, full_state_dict=True, cpu_offload=True)
    if rank == 0:
        expect(case, world, full, {})


if __name__ == "__main__":
    shutil.rmtree(OUT, ignore_errors=True)
    for name, run, world, orig in (("fsdp1_w2", fsdp1, 2, False), ("fsdp1_w3", fsdp1, 3, False), ("fsdp1_orig_w2", fsdp1, 2, True),
                                   ("fsdp2_w2", fsdp2, 2, None)):
        case = os.path.join(OUT, name)
        os.makedirs(case)
        common.spawn(run, world, case, orig)
