"""Makes deepspeed_plain: a model trained two steps by an engine without ZeRO under bf16 and under fp16 (DeepSpeed 0.19.8, PyTorch 2.13,
CPU, Gloo), whose head is tied to its embedding; in frozen_w2 one of two equal layers does not train. expected.json holds what the file itself says and, as `names`,
which parameter of the engine each id of the optimizer is. fused_fp16_w2 and fused_bf16_w2 hold what FusedAdam's wrapper (FP16_Optimizer of
fused_optimizer.py) saves; torch's AdamW steps inside of it, as FusedAdam itself needs a GPU. Their `names` lists the members of each group, and
expected.json what the engine's own groups say of the flat buffers.

    DS_ACCELERATOR=cpu python make_deepspeed_plain.py FOLDER [NAME...]
"""
import importlib, math, os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../sample_checkpoints/generate"))
import deepspeed_cases as cases
from common import *
from deepspeed.accelerator import get_accelerator

TAG = "global_step2"


def engine(cfg, fp16, fused):
    import deepspeed
    if fused:  # which the engine then gives a wrapper with flat buffers
        deepspeed.runtime.engine.FusedAdam = torch.optim.AdamW
    m = make_model(cfg)
    opt = torch.optim.AdamW(cases.groups_of(m, cfg), lr=cfg["lr"], betas=(0.9, 0.95), foreach=False)
    conf = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 0}, "steps_per_print": 1000}
    conf["fp16" if fp16 else "bf16"] = dict({"enabled": True}, **({"initial_scale_power": 4} if fp16 else {}))
    return deepspeed.initialize(model=m, optimizer=opt, config=conf, dist_init_required=False)[0]


def train(rank, world, cfg, case, fp16, fused):
    importlib.import_module("deepspeed.comm.torch")  # which would compile a helper for ranks of one machine
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    type(get_accelerator()).is_fp16_supported = lambda self: True  # slow on a CPU, and right
    os.chdir(case)
    e = engine(cfg, fp16, fused)
    g = torch.Generator().manual_seed(cfg["seed"] + rank)
    for _ in range(2):
        e.backward(e(torch.randint(0, cfg["vocab"], (4,), generator=g)).float().pow(2).mean())
        e.step()
    e.save_checkpoint("checkpoint", tag=TAG, client_state={"note": "client state"})
    if rank == 0:
        groups = [[(e.param_names[p], list(p.shape)) for p in group] for group in e.optimizer.fp16_groups]
        json.dump(groups if fused else [name for group in groups for name, _ in group], open("names.json", "w"))


def flat_state(optimizer, groups):
    """Slices of the flat buffers, as the engine's groups lie in them."""
    inner = optimizer["optimizer_state_dict"]
    out = {}
    for group, options, master in zip(groups, inner["param_groups"], optimizer["fp32_groups_flat"]):
        (id,), begin = options["params"], 0
        for name, shape in group:
            numel = math.prod(shape)
            for leaf, v in dict(inner["state"][id], fp32=master.detach()).items():
                out["optim.state.%s.%s" % (name, leaf)] = v[begin : begin + numel].reshape(shape) if v.dim() else v
            begin += numel
        assert begin == master.numel()
    return out


def run(root, name, cfg, fp16, fused):
    import deepspeed
    case = fresh_case(root, "", name)
    spawn(train, 2, cfg, case, fp16, fused)
    state = torch.load(os.path.join(case, "checkpoint", TAG, "mp_rank_00_model_states.pt"), weights_only=False)
    flat = {"model." + k: v for k, v in state["module"].items()}
    names = json.load(open(os.path.join(case, "names.json")))
    os.remove(os.path.join(case, "names.json"))
    if fused:
        flat.update(flat_state(state["optimizer"], names))
        names = [[name for name, _ in group] for group in names]
    else:
        masters = [m for group in state["optimizer"]["fp32_groups"] for m in group]
        for i, leaves in state["optimizer"]["optimizer_state_dict"]["state"].items():
            flat.update({"optim.state.%d.%s" % (i, k): v for k, v in dict(leaves, fp32=masters[i]).items()})
    write_expected(case, "deepspeed-zero", "deepspeed", deepspeed.__version__, flat, 2, tag=TAG, names=names,
                   notes="no ZeRO, %s%s" % ("fp16" if fp16 else "bf16", ", flat buffers" if fused else ""))


if __name__ == "__main__":
    config = dict(cases.VISIBLE, tied=True, hidden=7, dim=5)
    for name, fp16, frozen, fused in (
        ("bf16_w2", False, (), False),
        ("fp16_w2", True, (), False),
        ("frozen_w2", False, ("layers.0",), False),
        ("fused_bf16_w2", False, ("layers.0",), True),
        ("fused_fp16_w2", True, (), True),
    ):
        if len(sys.argv) < 3 or name in sys.argv[2:]:
            run(os.path.abspath(sys.argv[1]), name, dict(config, frozen=frozen), fp16, fused)
