"""Rank files of bfloat16 models under SGD without momentum (no state at all) and with it, and of a
model with a tied weight, made by PyTorch 2.13 the way sample_checkpoints/generate makes its
samples; expected.json is what PyTorch says they hold.

    python make_rank_files.py      writes rank_files_bf16_sgd/<case>/ and rank_files_tied/<case>/
                                   beside this script
    python make_rank_files.py tied writes the latter alone
"""
import os
import shutil
import sys

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "..", "sample_checkpoints", "generate"))
import common  # noqa: E402
import fsdp1_cases  # noqa: E402

OUT = os.path.join(HERE, "rank_files_bf16_sgd")
SMALL = dict(common.VISIBLE, vocab=5, dim=3, hidden=4, layers=1, out=2, dtype="bfloat16")


def sgd(m, c):
    ps = [p for p in m.parameters() if p.requires_grad]
    return torch.optim.SGD(ps, lr=c["lr"], momentum=c["momentum"], foreach=False)


def w_train(*args):
    fsdp1_cases.make_adamw = sgd
    fsdp1_cases.w_train(*args)


def w_jobs(*args):
    fsdp1_cases.make_adamw = sgd
    fsdp1_cases.w_jobs(*args)


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    for momentum, name in ((0.0, "plain"), (0.9, "momentum")):
        cfg = dict(SMALL, momentum=momentum)
        golden = os.path.join(HERE, "golden.pt")
        common.spawn(w_train, 2, cfg, True, golden, 2)
        for world, orig, mesh, mode, case in (
                (3, True, None, "sharded_rankfiles", "sharded_w3"), (2, True, (2,), "sharded_rankfiles", "mesh_w2"),
                (2, True, None, "local_rankfiles", "local_orig_w2"), (3, False, None, "local_rankfiles", "local_flat_w3")):
            path = common.fresh_case(OUT, name, case)
            common.spawn(w_jobs, world, cfg, orig, mesh, golden, [(path, mode)])
            fsdp1_cases.finish(OUT, path, cfg, world, orig, mesh, mode, golden, None)
        os.remove(golden)


def tied():
    out = os.path.join(HERE, "rank_files_tied")
    shutil.rmtree(out, ignore_errors=True)
    cfg = dict(SMALL, dtype="float32", momentum=0.9, tied=True)
    golden = os.path.join(HERE, "golden.pt")
    common.spawn(w_train, 2, cfg, True, golden, 2)
    for world in (2, 3):
        path = common.fresh_case(out, "", "local_orig_w%d" % world)
        common.spawn(w_jobs, world, cfg, True, None, golden, [(path, "local_rankfiles")])
        fsdp1_cases.finish(out, path, cfg, world, True, None, "local_rankfiles", golden, None)
    os.remove(golden)


if __name__ == "__main__":
    if sys.argv[1:] != ["tied"]:
        main()
    tied()
