"""Makes deepspeed_frozen_tied: a model whose head is tied to its embedding and half of whose weights do not train, trained two
steps under DeepSpeed 0.19.8 (PyTorch 2.13, CPU, Gloo). expected.json holds what zero_to_fp32 and ds_to_universal make of it.

    DS_ACCELERATOR=cpu python make_deepspeed_frozen_tied.py FOLDER
"""
import importlib, os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../sample_checkpoints/generate"))
import deepspeed_cases as cases

train = cases.w_run


def run_rank(*args):
    importlib.import_module("deepspeed.comm.torch")  # which would compile a helper for ranks of one machine
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    train(*args)


cases.w_run = run_rank

if __name__ == "__main__":
    config = dict(cases.VISIBLE, tied=True, frozen=("layers.0", "layers.1.norm.bias"), hidden=7, dim=5)
    for name, stage, world, bf16 in (("zero2_w3", 2, 3, False), ("zero3_bf16_w2", 3, 2, True), ("zero2_bf16_w2", 2, 2, True)):
        cases.run(sys.argv[1], name, dict(config, groups=stage < 3), world, stage, bf16=bf16)
