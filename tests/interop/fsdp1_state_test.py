"""Both directions with FSDP1: checkpoints that it wrote on 2, 3 and 4 processes (ShardedTensors, DTensors) are resumed by the C++ runtime on 2 and 4,
and what that wrote by FSDP1, with flat parameters and with original ones; the next 3 AdamW steps agree with the writer's own to 1e-6."""
import os, sys, tempfile, warnings
from support import SAMPLES, done
import torch
from common import VISIBLE, flatten, spawn, train
from fsdp_state_test import compare, cpp_resumes, tensors_of

warnings.filterwarnings("ignore")
CONFIG = dict(VISIBLE, groups=False)


def resume(rank, world, jobs, seed):
    """jobs: (checkpoint, use_orig_params, mesh, report). The first one's state is saved too, as this world's own."""
    from dcp_cases import dcp, restore
    from fsdp1_cases import collect, wrap
    for number, (source, orig, mesh, report) in enumerate(jobs):
        m, opt = wrap(CONFIG, world, orig, mesh)
        restore(m, opt, source)
        if number == 0:
            dcp.save(collect(m, opt, "SHARDED"), checkpoint_id=os.path.join(os.path.dirname(report), "written"))
        train(m, opt, dict(CONFIG, seed=seed), 3, rank)
        full = flatten(collect(m, opt, "FULL"))
        if rank == 0:
            torch.save({k: v for k, v in full.items() if torch.is_tensor(v)}, report)


def both_ways(world, source, seed, mesh, cases, d):
    """mesh: of FSDP1 when it resumes its own; cases: (original parameters, mesh, what) of what it makes of ours."""
    first, second, third = (os.path.join(d, name) for name in ("first", "second", "third"))
    cpp_resumes(world, "fsdp1", source, seed, first, second)
    jobs = [(source, False, mesh, d + "/theirs.pt")] + [(first, orig, mesh, f"{d}/{n}.pt") for n, (orig, mesh, _) in enumerate(cases)]
    spawn(resume, world, jobs, seed)
    cpp_resumes(world, "fsdp1", os.path.join(d, "written"), seed, third)
    compared = compare(f"FSDP1's of 3, resumed here on {world}", tensors_of(first, d), tensors_of(third, d))
    for (_, orig, _, report), path, what in zip(jobs, (third, *[second] * len(cases)), ("FSDP1's, resumed here", *(case[2] for case in cases))):
        wanted, found = tensors_of(path, d), torch.load(report)
        if orig:  # FSDP1's gather of full states uses one buffer twice on CPUs then: what it calls exp_avg is exp_avg_sq
            wanted, found = ({k: v for k, v in state.items() if not k.endswith(".exp_avg")} for state in (wanted, found))
        compared += compare(f"{what}, on {world}", wanted, found)
    return compared


if __name__ == "__main__":
    source, compared = str(SAMPLES / "dcp/fsdp1_sharded_flat_w3/checkpoint"), 0
    on_two = ((False, None, "ours, resumed by FSDP1"), (True, None, "ours, original parameters"), (False, (2,), "ours, with a mesh"))
    # ShardedTensors, and DTensors. (On 4 ranks without a mesh FSDP1 cannot load even its own: a rank's groups are empty then.)
    for world, mesh, cases in ((2, None, on_two), (4, (4,), ((False, (4,), "ours, with a mesh"),))):
        with tempfile.TemporaryDirectory() as d:
            compared += both_ways(world, source, 77, mesh, cases, d)
    done(compared, "tensors within 1e-6 after 3 resumed AdamW steps, between FSDP1 and the C++ runtime in both directions, on 2 and 4 ranks")
