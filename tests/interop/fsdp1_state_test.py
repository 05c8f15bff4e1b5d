"""Both directions with FSDP1: its checkpoint (ShardedTensors, trained on 3 ranks) is resumed by the C++ runtime on 2, and what that
wrote is resumed by FSDP1, with flat parameters and with original ones; the next 3 AdamW steps agree with the writer's own to 1e-6."""
import os, sys, tempfile, warnings
from support import SAMPLES, done
import torch
from common import VISIBLE, flatten, spawn, train
from fsdp_state_test import compare, cpp_resumes, tensors_of

warnings.filterwarnings("ignore")
CONFIG = dict(VISIBLE, groups=False)


def resume(rank, world, jobs, seed):
    """jobs: (checkpoint, use_orig_params, mesh, report)."""
    from dcp_cases import restore
    from fsdp1_cases import collect, wrap
    for source, orig, mesh, report in jobs:
        m, opt = wrap(CONFIG, world, orig, mesh)
        restore(m, opt, source)
        train(m, opt, dict(CONFIG, seed=seed), 3, rank)
        full = flatten(collect(m, opt, "FULL"))
        if rank == 0:
            torch.save({k: v for k, v in full.items() if torch.is_tensor(v)}, report)


if __name__ == "__main__":
    source, world, seed, compared = str(SAMPLES / "dcp/fsdp1_sharded_flat_w3/checkpoint"), 2, 77, 0
    with tempfile.TemporaryDirectory() as d:
        first, second = os.path.join(d, "first"), os.path.join(d, "second")
        cpp_resumes(world, "fsdp1", source, seed, first, second)
        jobs = [(source, False, None, d + "/a.pt"), (first, False, None, d + "/b.pt"), (first, True, None, d + "/c.pt"),
                (first, False, (world,), d + "/d.pt")]  # ShardedTensors, and DTensors
        spawn(resume, world, jobs, seed)
        for (_, orig, _, report), path, what in zip(jobs, (first, second, second, second), ("FSDP1's, resumed here", "ours, resumed by FSDP1",
                                                                                           "ours, original parameters", "ours, with a mesh")):
            wanted, found = tensors_of(path, d), torch.load(report)
            if orig:  # FSDP1's gather of full states uses one buffer twice on CPUs then: what it calls exp_avg is exp_avg_sq
                wanted, found = ({k: v for k, v in state.items() if not k.endswith(".exp_avg")} for state in (wanted, found))
            compared += compare(what, wanted, found)
    done(compared, "tensors within 1e-6 after 3 resumed AdamW steps, between FSDP1 and the C++ runtime in both directions")
