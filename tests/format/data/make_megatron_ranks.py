"""Checkpoints of real Megatron-core models and distributed optimizers over tensor-, pipeline-,
expert- and data-parallel ranks, made on CPUs with Gloo (megatron-core 0.16.1, PyTorch 2.13).

    python make_megatron_ranks.py      writes megatron_ranks/<case>/ beside this script

  grouped_*    legacy rank folders of GroupedMLP experts (weight1, weight2), expert parallel
  whole_*      torch_dist with the optimizer fully_reshardable, generators of random numbers, and what
               Megatron-LM itself saves beside them
  buckets_*    torch_dist with the optimizer in bucket space (dp_reshardable, dp_zero_gather_scatter)

expected.json of a case: sha256 and shape of every whole tensor. Weights are as Megatron's own
gather gives them: a torch_dist save of the same objects whose optimizer is fully_reshardable, loaded
as a whole. The optimizer's state follows from them, element by element, as STATE says; where a buffer
has several buckets Megatron's gather of it is another, shifted by the padding between buckets.
"""
import argparse
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import warnings
import zlib

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "megatron_ranks")
warnings.filterwarnings("ignore")


STATE = {"param": lambda weight: weight * 1.0001, "exp_avg": lambda weight: torch.sin(37 * weight),
         "exp_avg_sq": lambda weight: weight * weight}


def pretend_cuda():
    """Megatron asks for the current CUDA device and for types of CUDA tensors; here all is CPU."""
    torch.cuda.current_device = lambda: "cpu"
    torch.Tensor.cuda = lambda self, *a, **k: self
    plain = torch.Tensor.type

    def cuda_type(self, *a, **k):
        out = plain(self, *a, **k)
        return out.replace("torch.", "torch.cuda.", 1) if isinstance(out, str) else out
    torch.Tensor.type = cuda_type
    tensor = torch.tensor
    torch.tensor = lambda *a, **k: tensor(*a, **{n: v for n, v in k.items() if n != "device"})
    zeros = torch.zeros
    torch.zeros = lambda *a, **k: zeros(*a, **{n: v for n, v in k.items() if n != "device"})
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    filesystem_async._process_memory = lambda: 0  # asks for psutil
    torch.cuda.empty_cache = torch.cuda.synchronize = lambda *a, **k: None


def build(case):
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.moe import grouped_gemm_util
    from megatron.core.transformer.transformer_config import TransformerConfig
    grouped_gemm_util.assert_grouped_gemm_is_available = lambda: None
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=case["tp"], pipeline_model_parallel_size=case["pp"],
        expert_model_parallel_size=case["ep"], create_gloo_process_groups=True)
    torch.manual_seed(5)
    from megatron.core.tensor_parallel import random as tp_random
    tp_random.model_parallel_cuda_manual_seed = lambda *a, **k: None
    experts = case.get("experts")
    config = TransformerConfig(
        num_layers=case["layers"], hidden_size=case["hidden"], ffn_hidden_size=case["ffn"],
        num_attention_heads=case["heads"], num_query_groups=case.get("groups", case["heads"]),
        tensor_model_parallel_size=case["tp"], pipeline_model_parallel_size=case["pp"],
        expert_model_parallel_size=case["ep"], sequence_parallel=False,
        num_moe_experts=experts, moe_ffn_hidden_size=case.get("moe_ffn"),
        moe_grouped_gemm=bool(case.get("grouped")), add_bias_linear=case.get("bias", False),
        gated_linear_unit=case["gated"], activation_func=torch.nn.functional.silu if case["gated"] else torch.nn.functional.gelu,
        use_cpu_initialization=True, params_dtype=torch.bfloat16, bf16=True, pipeline_dtype=torch.bfloat16,
        normalization=case.get("norm", "LayerNorm"), qk_layernorm=bool(case.get("qk_norm")), gradient_accumulation_fusion=False,
        bias_activation_fusion=False, apply_rope_fusion=False)
    spec = get_gpt_layer_local_spec(num_experts=experts, moe_grouped_gemm=bool(case.get("grouped")),
                                    qk_layernorm=bool(case.get("qk_norm")),
                                    moe_use_legacy_grouped_gemm=case.get("grouped", False),
                                    normalization=case.get("norm", "LayerNorm"))
    first = parallel_state.is_pipeline_first_stage()
    last = parallel_state.is_pipeline_last_stage()
    model = GPTModel(config=config, transformer_layer_spec=spec, vocab_size=case["vocab"],
                     max_sequence_length=case.get("positions", 4), pre_process=first, post_process=last,
                     share_embeddings_and_output_weights=case["tied"],
                     position_embedding_type="learned_absolute" if case.get("positions") else "none")
    fill(model.bfloat16(), config)
    model.requires_grad_(True)
    ddp = DistributedDataParallel(
        config, DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True,
                                              overlap_grad_reduce=case.get("bucket") is not None,
                                              bucket_size=case.get("bucket")), model)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=1e-3, bf16=True, params_dtype=torch.bfloat16,
                        use_distributed_optimizer=True, weight_decay=0.1), [ddp])
    moments(optimizer)
    return model, optimizer


def fill(model, config):
    """Values by the parameter's name in the whole model: alike wherever ranks hold the same."""
    from megatron.core import parallel_state
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
    offset = get_transformer_layer_offset(config)
    for name, param in model.named_parameters():
        parts = name.split(".")
        if "layers" in parts:
            at = parts.index("layers") + 1
            parts[at] = str(int(parts[at]) + offset)
        whole = ".".join(parts)
        if whole == "output_layer.weight" and model.share_embeddings_and_output_weights:
            whole = "embedding.word_embeddings.weight"
        if getattr(param, "tensor_model_parallel", False) or ".experts.weight" in name:
            whole += f"@{parallel_state.get_tensor_model_parallel_rank()}"
        if ".experts." in name:
            whole += f"@{parallel_state.get_expert_model_parallel_rank()}"
        g = torch.Generator().manual_seed(zlib.crc32(whole.encode()))
        param.data.copy_(torch.randn(param.shape, generator=g))


def moments(optimizer):
    for one in optimizer.chained_optimizers:
        one._init_optimizer_states_with_dummy_values()
        for param in list(one.model_param_group_index_map):
            state = one._get_main_param_and_optimizer_states(param)
            if state["param"].numel() == 0:
                continue
            main = param.data.view(-1)[one._get_model_param_range_map(param)["param"].start:
                                       one._get_model_param_range_map(param)["param"].end].float()
            with torch.no_grad():
                for leaf, of_weight in STATE.items():
                    state[leaf].copy_(of_weight(main))


def arguments(case):
    more = dict(num_query_groups=case["groups"], group_query_attention=True, bf16=True) if case.get("rng") else {}
    return argparse.Namespace(
        **more,
        tensor_model_parallel_size=case["tp"], pipeline_model_parallel_size=case["pp"],
        expert_model_parallel_size=case["ep"], num_layers=case["layers"], hidden_size=case["hidden"],
        num_attention_heads=case["heads"], num_experts=case.get("experts"), swiglu=case["gated"],
        untie_embeddings_and_output_weights=not case["tied"], padded_vocab_size=case["vocab"],
        make_vocab_size_divisible_by=1, use_distributed_optimizer=True,
        overlap_grad_reduce=case.get("bucket") is not None, ddp_bucket_size=case.get("bucket"),
        data_parallel_size=dist.get_world_size() // case["tp"] // case["pp"], world_size=dist.get_world_size())


def sharded(case, model, optimizer, kind):
    metadata = {"distrib_optim_sharding_type": kind, "chained_optim_avoid_prefix": True,
                "singleton_local_shards": False}
    from megatron.core import parallel_state
    metadata["dp_cp_group"] = parallel_state.get_data_parallel_group(with_context_parallel=True)
    state = {"args": arguments(case), "checkpoint_version": 3.0, "iteration": 7}
    state["model"] = model.sharded_state_dict(metadata=metadata)
    state["optimizer"] = optimizer.sharded_state_dict(state["model"], metadata=metadata)
    if case.get("rng") and kind == case["kind"]:
        state["rng_state"] = generators()
        state["opt_param_scheduler"] = {"max_lr": 1e-3, "num_steps": 7}
    return state


def generators():
    """As get_rng_state in megatron/training/checkpointing.py."""
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing.mapping import ShardedObject
    torch.manual_seed(100 + dist.get_rank())
    random.seed(dist.get_rank())
    own = {"random_rng_state": random.getstate(), "torch_rng_state": torch.get_rng_state(),
           "rng_tracker_states": {"model-parallel-rng": torch.get_rng_state()}}
    return ShardedObject("rng_state", [own],
                         (parallel_state.get_pipeline_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_world_size()),
                         (parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_tensor_model_parallel_rank()),
                         replica_id=parallel_state.get_data_parallel_rank(with_context_parallel=True))


def save_dist(case, model, optimizer, kind, path, parallel):
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.serialization import get_default_save_sharded_strategy
    from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper
    if dist.get_rank() == 0:
        os.makedirs(path)
    dist.barrier()
    strategy = get_default_save_sharded_strategy("torch_dist")
    if parallel:
        strategy = FullyParallelSaveStrategyWrapper(
            strategy, parallel_state.get_data_parallel_group(with_context_parallel=True))
    content = {"distrib_optim_sharding_type": kind, "chained_optim_avoid_prefix": True,
               "singleton_local_shards": False} if case.get("rng") else None
    dist_checkpointing.save(sharded(case, model, optimizer, kind), path, strategy, content_metadata=content)
    dist.barrier()


def save_legacy(case, model, optimizer, path):
    from megatron.core import parallel_state
    tp, pp, ep = (parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_rank(),
                  parallel_state.get_expert_model_parallel_rank())
    folder = f"{path}/mp_rank_{tp:02d}" + (f"_{pp:03d}" if case["pp"] > 1 else "") + (f"_{ep:03d}" if case["ep"] > 1 else "")
    if parallel_state.get_expert_data_parallel_rank() == 0:
        os.makedirs(folder, exist_ok=True)
    dist.barrier()
    optimizer.save_parameter_state(folder + "/distrib_optim.pt")
    if parallel_state.get_expert_data_parallel_rank() == 0:
        torch.save({"args": arguments(case), "checkpoint_version": 3.0, "iteration": 7,
                    "model": model.state_dict_for_save_checkpoint(), "optimizer": optimizer.state_dict()},
                   folder + "/model_optim_rng.pt")
    dist.barrier()


def worker(rank, world, port, case, path, oracle):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    pretend_cuda()
    model, optimizer = build(case)
    if case["kind"] == "legacy":
        save_legacy(case, model, optimizer, path)
    else:
        save_dist(case, model, optimizer, case["kind"], path, case.get("parallel", True))
    save_dist(case, model, optimizer, "fully_reshardable", oracle, False)
    dist.barrier()
    dist.destroy_process_group()


def gathered(oracle):
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
    meta = FileSystemReader(oracle).read_metadata().state_dict_metadata
    tensors = {k: torch.empty(m.size, dtype=m.properties.dtype) for k, m in meta.items() if hasattr(m, "size")}
    import torch.distributed.checkpoint as dcp
    dcp.load(tensors, checkpoint_id=oracle, no_dist=True)
    for key in [k for k in tensors if k.startswith("optimizer.state.")]:
        leaf, name = key[len("optimizer.state."):].split(".", 1)
        tensors[key] = STATE[leaf](tensors[name].float())
    return tensors


def digest(t):
    raw = t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""
    return {"shape": list(t.shape), "dtype": str(t.dtype)[6:], "sha256": hashlib.sha256(raw).hexdigest()}


LEGACY = {"self_attention.linear_qkv.layer_norm_": "input_layernorm.", "mlp.linear_fc1.layer_norm_": "pre_mlp_layernorm."}


def entries(case, key, t):
    """What the toolkit calls it; legacy rank files keep the modules' own names, layer by layer."""
    if case["kind"] != "legacy":
        return [dict(key=key, **digest(t))]
    out, state = [], "optimizer.state."
    leaf, name = key[len(state):].split(".", 1) if key.startswith(state) else (None, key)
    for fused, own in LEGACY.items():
        name = name.replace(fused, own)
    for layer in range(t.shape[0]) if ".layers." in key else [None]:
        x, whole = (t, name) if layer is None else (t[layer], name.replace("layers.", f"layers.{layer}."))
        if ".experts.experts.linear_fc" in whole:
            # As GroupedMLP holds it: transposed, and gates and ups of an expert side by side.
            x, first = x.transpose(-1, -2), "linear_fc1" in whole
            if first and case["gated"]:
                x = x.reshape(x.shape[0], x.shape[1], 2, -1)
            whole = whole.split("experts.experts.")[0] + f"experts.weight{1 if first else 2}"
        leaf_name = "fp32_param" if leaf == "param" else leaf
        out.append(dict(key=f"optimizer.state.{whole}.{leaf_name}" if leaf else "model." + whole, **digest(x)))
    return out


def make(name, case, port):
    folder = os.path.join(OUT, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    world = case["tp"] * case["pp"] * case["dp"]
    with tempfile.TemporaryDirectory() as scratch:
        oracle = scratch + "/oracle"
        mp.spawn(worker, (world, port, case, folder + "/iter_0000007", oracle), nprocs=world)
        whole = gathered(oracle)
    expected = [entry for key, t in whole.items() for entry in entries(case, key, t)]
    import megatron.core
    with open(folder + "/expected.json", "w") as f:
        json.dump({"megatron_core": megatron.core.__version__, "case": case, "tensors": expected}, f, indent=1)
    size = sum(os.path.getsize(os.path.join(d, x)) for d, _, xs in os.walk(folder) for x in xs)
    print(name, world, "ranks", size, "bytes", len(expected), "tensors", flush=True)


SMALL = dict(tp=2, pp=1, ep=1, dp=1, layers=2, hidden=8, ffn=12, heads=4, groups=2, vocab=12, gated=True, tied=False)
CASES = {
    "grouped_tp2_ep2": dict(SMALL, kind="legacy", dp=2, ep=2, layers=1, experts=4, moe_ffn=6, grouped=True),
    "grouped_tp1_ep2_plain": dict(SMALL, kind="legacy", tp=1, dp=2, ep=2, layers=1, experts=4, moe_ffn=6, grouped=True, gated=False),
    "buckets_tp2_small": dict(SMALL, kind="dp_reshardable", norm="RMSNorm"),
    "buckets_pp2_dp2_tied": dict(SMALL, kind="dp_reshardable", tp=1, pp=2, dp=2, tied=True),
    "whole_tp2": dict(SMALL, kind="fully_reshardable", norm="RMSNorm", rng=True),
    "gathered_tp2_pp2": dict(SMALL, kind="dp_zero_gather_scatter", pp=2, layers=2),
}


def main():
    wanted = sys.argv[1:] or list(CASES)
    for name in wanted:
        make(name, CASES[name], 29610 + zlib.crc32(name.encode()) % 300)


if __name__ == "__main__":
    main()
