"""Makes deepspeed_plain: a model trained two steps by an engine without ZeRO under bf16 and under fp16 (DeepSpeed 0.19.8, PyTorch 2.13,
CPU, Gloo), whose head is tied to its embedding; in frozen_w2 one of two equal layers does not train. expected.json holds what the file itself says and, as `names`,
which parameter of the engine each id of the optimizer is.

    DS_ACCELERATOR=cpu python make_deepspeed_plain.py FOLDER
"""
import importlib, os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../sample_checkpoints/generate"))
import deepspeed_cases as cases
from common import *
from deepspeed.accelerator import get_accelerator

TAG = "global_step2"


def engine(cfg, fp16):
    import deepspeed
    m = make_model(cfg)
    opt = torch.optim.AdamW(cases.groups_of(m, cfg), lr=cfg["lr"], betas=(0.9, 0.95), foreach=False)
    conf = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 0}, "steps_per_print": 1000}
    conf["fp16" if fp16 else "bf16"] = dict({"enabled": True}, **({"initial_scale_power": 4} if fp16 else {}))
    return deepspeed.initialize(model=m, optimizer=opt, config=conf, dist_init_required=False)[0]


def train(rank, world, cfg, case, fp16):
    importlib.import_module("deepspeed.comm.torch")  # which would compile a helper for ranks of one machine
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    type(get_accelerator()).is_fp16_supported = lambda self: True  # slow on a CPU, and right
    os.chdir(case)
    e = engine(cfg, fp16)
    g = torch.Generator().manual_seed(cfg["seed"] + rank)
    for _ in range(2):
        e.backward(e(torch.randint(0, cfg["vocab"], (4,), generator=g)).float().pow(2).mean())
        e.step()
    e.save_checkpoint("checkpoint", tag=TAG, client_state={"note": "client state"})
    if rank == 0:
        json.dump([e.param_names[p] for group in e.optimizer.fp16_groups for p in group], open("names.json", "w"))


def run(root, name, cfg, fp16):
    import deepspeed
    case = fresh_case(root, "", name)
    spawn(train, 2, cfg, case, fp16)
    state = torch.load(os.path.join(case, "checkpoint", TAG, "mp_rank_00_model_states.pt"), weights_only=False)
    flat = {"model." + k: v for k, v in state["module"].items()}
    optimizer = state["optimizer"]["optimizer_state_dict"]
    masters = [m for group in state["optimizer"]["fp32_groups"] for m in group]
    for i, leaves in optimizer["state"].items():
        flat.update({"optim.state.%d.%s" % (i, k): v for k, v in dict(leaves, fp32=masters[i]).items()})
    names = json.load(open(os.path.join(case, "names.json")))
    os.remove(os.path.join(case, "names.json"))
    write_expected(case, "deepspeed-zero", "deepspeed", deepspeed.__version__, flat, 2, tag=TAG, names=names,
                   notes="no ZeRO, %s" % ("fp16" if fp16 else "bf16"))


if __name__ == "__main__":
    config = dict(cases.VISIBLE, tied=True, hidden=7, dim=5)
    for name, fp16, frozen in (("bf16_w2", False, ()), ("fp16_w2", True, ()), ("frozen_w2", False, ("layers.0",))):
        run(os.path.abspath(sys.argv[1]), name, dict(config, frozen=frozen), fp16)
