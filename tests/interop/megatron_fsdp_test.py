"""Megatron-FSDP (fsdp_dtensor) to torch_dist and back, with the optimizer.

The source is made on CPUs by megatron-core's own functions over a real model's parameters: DTensors cut in uneven rows
(make_fsdp_dtensor), gated matrices in halves (handle_swiglu_in_state_dict), experts numbered in the whole
(handle_experts_in_state_dict), saved as Megatron-LM saves them (preprocess_state_dict_for_uneven_dtensor, DCP). The
wrapper class itself needs CUDA streams, so that names and slices of parameters are given here, as its sources form
them. What ckpt-convert makes of it is loaded by dist_checkpointing.load into a real model and its distributed
optimizer, which takes a step; the way back is loaded by DCP into the DTensors of the source.
"""
import os, re, sys, tempfile

from support import ROOT, done, tool
import torch
from common import spawn

sys.path.insert(0, str(ROOT / "tests" / "format" / "data"))
DENSE = dict(tp=1, pp=1, dp=2, ep=1, layers=3, hidden=8, ffn=12, heads=2, groups=1, vocab=16, gated=True, tied=False,
             norm="RMSNorm", qk_norm=True)
CASES = {"dense": DENSE, "tied": {**DENSE, "tied": True, "norm": "LayerNorm", "bias": True},
         "plain": {**DENSE, "gated": False, "norm": "LayerNorm", "bias": True, "qk_norm": False},
         "experts": {**DENSE, "experts": 3, "moe_ffn": 6}}
FUSED = {"input_layernorm.": "self_attention.linear_qkv.layer_norm_", "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"}
WRAPPERS = "module.module.module."


def te_name(name, case):
    """As Transformer Engine's modules are called; those here are core's local ones."""
    for own, fused in FUSED.items():
        if not (case.get("experts") and own == "pre_mlp_layernorm."):
            name = name.replace(own, fused)
    return re.sub(r"local_experts\.(\d+)\.(linear_fc\d)\.(\w+)", r"\2.\3\1", name)


class Wrapped:
    """What handle_swiglu_in_state_dict asks the wrapper for."""

    def __init__(self, config, params):
        self.config, self.params = config, params

    def get_parameter(self, name):
        return self.params[name.removeprefix("module.").removeprefix("module.")]


def row_slice(shape, rank):
    """Uneven: two thirds of the rows, and the rest."""
    rows, inner = shape[0], 1
    for n in shape[1:]:
        inner *= n
    cut = -(-rows * 2 // 3) * inner
    return slice(0, cut) if rank == 0 else slice(cut, rows * inner)


def fsdp_state(case, model, optimizer, rank):
    from make_megatron_ranks import STATE
    from megatron.core.distributed.fsdp.src.megatron_fsdp.param_and_grad_buffer import make_fsdp_dtensor
    from megatron.core.distributed.fsdp.src.megatron_fsdp.uneven_dtensor import preprocess_state_dict_for_uneven_dtensor
    from megatron.core.distributed.fsdp.src.megatron_fsdp.utils import FSDPDistributedIndex
    from megatron.core.transformer.fsdp_dtensor_checkpoint import handle_experts_in_state_dict, handle_swiglu_in_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp_cp", "tp"))
    index = FSDPDistributedIndex(device_mesh=mesh, dp_shard_dim="dp_cp", tp_dim="tp")
    params, weights, moments, options = {}, {}, {}, {}
    groups = [g for one in optimizer.chained_optimizers for g in one.optimizer.param_groups]
    for name, weight in model.named_parameters():
        name = te_name(name, case)
        param = torch.nn.Parameter(torch.empty(weight.shape, device="meta"))
        param.megatron_fsdp_slice, param.megatron_fsdp_dist_index = row_slice(weight.shape, rank), index
        params[name] = param

        def cut(full):
            return make_fsdp_dtensor(full.reshape(-1)[param.megatron_fsdp_slice].clone(), param, index,
                                     is_expert_param=".experts." in name, update_uneven_dtensor_chunk_meta=True)
        weights["module." + name] = cut(STATE["param"](weight.detach().float()))
        moments[WRAPPERS + name] = {leaf: cut(STATE[leaf](weight.detach().float())) for leaf in ("exp_avg", "exp_avg_sq")}
        decays = weight.dim() > 1 and not name.endswith(".bias")
        group = next(g for g in groups if (g["wd_mult"] != 0) == decays or len(groups) == 1)
        options[WRAPPERS + name] = {**{k: v for k, v in group.items() if k != "params"}, "step": 7}
    optim = {"state": moments, "param_to_group_meta": options}
    if case["gated"]:
        weights, optim = handle_swiglu_in_state_dict(Wrapped(model.config, params), weights, optim)
    weights = handle_experts_in_state_dict(weights, case.get("experts"))
    from make_megatron_ranks import arguments
    state = {"args": arguments(case), "checkpoint_version": 3.0, "iteration": 7, "model": weights, "optimizer": optim,
             "opt_param_scheduler": {"num_steps": 7, "max_lr": 0.001}}
    preprocess_state_dict_for_uneven_dtensor(state)
    return state


def started(rank, case):
    from make_megatron_ranks import build, pretend_cuda
    pretend_cuda()
    return build(case)


def save(rank, world, case, folder):
    import torch.distributed.checkpoint as dcp
    model, optimizer = started(rank, case)
    dcp.save(fsdp_state(case, model, optimizer, rank), checkpoint_id=folder)


def flat_tensors(state, prefix=""):
    for key, value in state.items():
        if isinstance(value, dict):
            yield from flat_tensors(value, f"{prefix}{key}.")
        elif torch.is_tensor(value):
            yield prefix + key, value


def load_fsdp(rank, world, case, folder):
    """Every piece and every option of the way back is that of the source."""
    import torch.distributed.checkpoint as dcp
    model, optimizer = started(rank, case)
    want = fsdp_state(case, model, optimizer, rank)
    got = fsdp_state(case, model, optimizer, rank)
    got["args"] = None
    for _, tensor in flat_tensors(got):
        tensor.to_local().fill_(-1)
    for options in got["optimizer"]["param_to_group_meta"].values():
        for key in options:
            options[key] = None
    dcp.load(got, checkpoint_id=folder)
    wanted = dict(flat_tensors(want))
    for name, tensor in flat_tensors(got):
        assert torch.equal(tensor.to_local(), wanted[name].to_local()), name
    assert got["optimizer"]["param_to_group_meta"] == want["optimizer"]["param_to_group_meta"]
    assert got["iteration"] == 7 and got["opt_param_scheduler"]["num_steps"] == 7 and got["args"].swiglu == case["gated"]


def counters_stay():
    """Megatron sets the counters of torch's AdamW by those of the groups, and then looks for them among the tensors again,
    where there are none (KeyError). The fused Adam that it has on GPUs keeps none."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    take = DistributedOptimizer._set_main_param_and_optimizer_states

    def with_counter(self, param, tensors):
        group, place = self.model_param_group_index_map[param]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][place]]
        take(self, param, {**tensors, **({"step": state["step"]} if "step" in state else {})})
    DistributedOptimizer._set_main_param_and_optimizer_states = with_counter


def load_dist(rank, world, case, folder):
    from make_megatron_ranks import STATE
    from megatron.core import dist_checkpointing, parallel_state
    model, optimizer = started(rank, case)
    wanted = {n: p.detach().clone() for n, p in model.named_parameters()}
    with torch.no_grad():
        for param in model.parameters():
            param.fill_(123.0)
    metadata = {"distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True,
                "singleton_local_shards": False,
                "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    asked = model.sharded_state_dict(metadata=metadata)
    asked = {k: v for k, v in asked.items() if not k.endswith("_extra_state")}
    if case.get("experts"):  # local modules name the norm before experts as that before a dense MLP
        for value in asked.values():
            value.key = value.key.replace("mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm.")
    state = {"model": asked, "optimizer": optimizer.sharded_state_dict(asked, is_loading=True, metadata=metadata)}
    got = dist_checkpointing.load(state, folder)
    model.load_state_dict(got["model"], strict=False)
    counters_stay()
    optimizer.load_state_dict(got["optimizer"])
    for name, param in model.named_parameters():
        assert torch.equal(param, STATE["param"](wanted[name].float()).to(param.dtype)), name
    for one in optimizer.chained_optimizers:
        for group in one.optimizer.param_groups:
            assert group["step"] == 7, group.keys()
        names = {p: n for n, p in model.named_parameters()}
        for param in list(one.model_param_group_index_map):
            part = one._get_model_param_range_map(param)["param"]
            state = one._get_main_param_and_optimizer_states(param)
            full = wanted[names[param]].float().view(-1)[part.start:part.end]
            for leaf, of_weight in STATE.items():
                assert torch.equal(state[leaf].view(-1)[:full.numel()], of_weight(full)), (names[param], leaf)
    for param in model.parameters():
        param.main_grad.fill_(0.5)
    before = [p.detach().clone() for p in model.parameters()]
    assert optimizer.step()[0]
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters()))


def main():
    n = 0
    for name in sys.argv[1:] or CASES:
        case = CASES[name]
        with tempfile.TemporaryDirectory() as work:
            source, dist, back = (os.path.join(work, x) for x in ("fsdp/iter_0000007", "dist/iter_0000007", "back/iter_0000007"))
            spawn(save, 2, case, source)
            tool("ckpt-inspect", "verify", "--strict", source)
            assert "no findings" in tool("ckpt-inspect", "optim", source), name
            tool("ckpt-convert", source, dist, "--to", "megatron-dist", "--mesh", "tp=1", "--rules", "megatron-fsdp:megatron-dist",
                 "--strict-rules", "--verify")
            spawn(load_dist, 2, case, dist)
            side = "megatron-fsdp" if case["gated"] else "megatron-dist-layers"
            tool("ckpt-convert", dist, back, "--to", "torch-dcp", "--world-size", "3", "--rules", f"megatron-fsdp:{side}",
                 "--strict-rules", "--verify")
            spawn(load_fsdp, 2, case, back)
            n += 1
    done(n, "Megatron-FSDP checkpoints to torch_dist, loaded with their optimizers, and back")


if __name__ == "__main__":
    try:
        import megatron.core  # noqa: F401
    except ImportError as e:
        print(f"skipped: megatron-core is not installed ({e}); tests/interop/requirements.txt names it")
        sys.exit(77)
    main()
