"""Makes deepspeed_round_robin: ZeRO 1 and 2 with round_robin_gradients, under which DeepSpeed 0.19.8 deals the parameters out before it
lays them end to end, but records the slices of the order they were given in (PyTorch 2.13, CPU, Gloo). expected.json is that of a twin
without that option, whose training is the same to the bit: ds_to_universal goes by the slices and mixes parameters up here.

    DS_ACCELERATOR=cpu python make_deepspeed_round_robin.py FOLDER
"""
import glob, importlib, os, shutil, sys, tempfile
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../sample_checkpoints/generate"))
import torch
import deepspeed_cases as cases

train = cases.w_run


def run_rank(rank, world, cfg, case, *args):
    import deepspeed
    importlib.import_module("deepspeed.comm.torch")  # which would compile a helper for ranks of one machine
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    initialize = deepspeed.initialize

    def dealt(config, **rest):
        config["zero_optimization"]["round_robin_gradients"] = cfg["dealt"]
        return initialize(config=config, **rest)

    deepspeed.initialize = dealt
    train(rank, world, cfg, case, *args)


cases.w_run = run_rank

if __name__ == "__main__":
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    for name, stage, world in (("zero1_w3", 1, 3), ("zero2_w2", 2, 2)):
        config = dict(cases.VISIBLE, hidden=7, dim=5, dealt=True)
        case = cases.fresh_case(sys.argv[1], "deepspeed", name)
        cases.spawn(cases.w_run, world, config, case, stage, False, 2, None, "global_step2")
        for script in glob.glob(case + "/checkpoint/*.py"):
            os.remove(script)  # DeepSpeed's own, no data
        with tempfile.TemporaryDirectory() as twin:
            cases.run(twin, name, dict(config, dealt=False), world, stage)
            weights = [get_fp32_state_dict_from_zero_checkpoint(root + "/checkpoint", "global_step2")
                       for root in (case, os.path.join(twin, "deepspeed", name))]
            assert weights[0].keys() == weights[1].keys()
            assert all(torch.equal(weights[0][k], weights[1][k]) for k in weights[0])
            shutil.copy(os.path.join(twin, "deepspeed", name, "expected.json"), case)
