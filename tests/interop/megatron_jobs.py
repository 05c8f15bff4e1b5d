"""Jobs of real Megatron-core models and optimizers on CPUs with Gloo, for the tests that let Megatron itself load what the
commands wrote: a job saves, in rank files and in torch_dist; another one, at any size, loads either, and takes a step.

A case is a dict: sizes (tp, pp, ep, dp, vpp), the model (layers, hidden, ffn, heads, ...) and its optimizer. Weights, state and
gradients are functions of a parameter's name in the whole model, so that any two jobs of one model agree on them.
"""
import argparse
import io
import os
import pickle
import sys
import zlib

from support import ROOT
import torch
import torch.distributed as dist

sys.path.insert(0, str(ROOT / "tests" / "format" / "data"))
SMALL = dict(tp=1, pp=1, ep=1, dp=1, vpp=1, layers=2, hidden=8, ffn=12, heads=4, groups=2, vocab=12, gated=True, tied=False,
             distributed=True, bf16=True, mtp=0, mla=False, experts=None, iteration=7)


def world_of(case):
    return case["tp"] * case["pp"] * case["dp"]


def config_of(case):
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
    kind = torch.bfloat16 if case["bf16"] else torch.float32
    numbers = dict(
        num_layers=case["layers"], hidden_size=case["hidden"], ffn_hidden_size=case["ffn"], num_attention_heads=case["heads"],
        tensor_model_parallel_size=case["tp"], pipeline_model_parallel_size=case["pp"], expert_model_parallel_size=case["ep"],
        virtual_pipeline_model_parallel_size=case["vpp"] if case["vpp"] > 1 else None, sequence_parallel=False,
        num_moe_experts=case["experts"], moe_ffn_hidden_size=case["ffn"] if case["experts"] else None, add_bias_linear=case.get("bias", False),
        gated_linear_unit=case["gated"], activation_func=torch.nn.functional.silu if case["gated"] else torch.nn.functional.gelu,
        use_cpu_initialization=True, params_dtype=kind, bf16=case["bf16"], pipeline_dtype=kind, normalization="RMSNorm",
        gradient_accumulation_fusion=False, bias_activation_fusion=False, apply_rope_fusion=False)
    if case["mtp"]:
        numbers["mtp_num_layers"] = case["mtp"]
    if case["mla"]:
        return MLATransformerConfig(multi_latent_attention=True, q_lora_rank=4, kv_lora_rank=4, qk_head_dim=4,
                                    qk_pos_emb_head_dim=2, v_head_dim=4, **numbers)
    return TransformerConfig(num_query_groups=case["groups"], **numbers)


def start(case):
    from make_megatron_ranks import pretend_cuda
    pretend_cuda()
    if case["mla"]:
        sys.path.insert(0, str(ROOT / "tests" / "ops" / "data"))
        from make_moe_rules import take_local_latent_attention
        take_local_latent_attention()
    if case.get("extra"):
        keep_extra_state()
    from megatron.core import parallel_state
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=case["tp"], pipeline_model_parallel_size=case["pp"], expert_model_parallel_size=case["ep"],
        virtual_pipeline_model_parallel_size=case["vpp"] if case["vpp"] > 1 else None, create_gloo_process_groups=True)
    from megatron.core.tensor_parallel import random as tp_random
    tp_random.model_parallel_cuda_manual_seed = lambda *a, **k: None
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    take = DistributedOptimizer._set_main_param_and_optimizer_states

    def with_step(self, param, tensors):
        """PyTorch's Adam has a step among the tensors of its state, Transformer Engine's and Apex' have not."""
        group, order = self.model_param_group_index_map[param]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        take(self, param, {**({"step": state["step"]} if "step" in state else {}), **tensors})
    DistributedOptimizer._set_main_param_and_optimizer_states = with_step


def build(case):
    """(model chunks, optimizer) of this rank."""
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt import GPTModel, gpt_layer_specs
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    config = config_of(case)
    chunks, wrapped = [], []
    for chunk in range(case["vpp"]):
        where = dict(vp_stage=chunk) if case["vpp"] > 1 else {}
        spec = gpt_layer_specs.get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm", **where) if case["experts"] \
            else gpt_layer_specs.get_gpt_layer_local_spec(num_experts=None, normalization="RMSNorm", multi_latent_attention=case["mla"])
        more = {}
        if case["mtp"]:
            more["mtp_block_spec"] = gpt_layer_specs.get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False, **where)
        first = parallel_state.is_pipeline_first_stage(ignore_virtual=False, **where)
        last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, **where)
        model = GPTModel(config=config, transformer_layer_spec=spec, vocab_size=case["vocab"], max_sequence_length=4,
                         pre_process=first, post_process=last, share_embeddings_and_output_weights=case["tied"],
                         position_embedding_type="rope", **where, **more)
        if case["bf16"]:
            model.bfloat16()
        fill(model, config, where.get("vp_stage"))
        if case.get("extra"):
            note_modules(case, model, config, where.get("vp_stage"))
        chunks.append(model)
        wrapped.append(DistributedDataParallel(config, DistributedDataParallelConfig(
            use_distributed_optimizer=case["distributed"], grad_reduce_in_fp32=True), model, disable_bucketing=chunk > 0))
    optimizer = get_megatron_optimizer(OptimizerConfig(
        optimizer="adam", lr=1e-2, bf16=case["bf16"], params_dtype=config.params_dtype, clip_grad=0.0,
        use_distributed_optimizer=case["distributed"], weight_decay=0.1), wrapped)
    return chunks, wrapped, optimizer


def whole_name(model, config, name, vp_stage):
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
    parts = name.split(".")
    if parts[:2] == ["decoder", "layers"]:
        parts[2] = str(int(parts[2]) + get_transformer_layer_offset(config, *([vp_stage] if vp_stage is not None else [])))
    whole = ".".join(parts)
    if whole == "output_layer.weight" and model.share_embeddings_and_output_weights:
        whole = "embedding.word_embeddings.weight"
    return whole


def values(param, name, salt):
    """Of this rank's part of a parameter: alike wherever ranks hold the same of it."""
    from megatron.core import parallel_state
    whole = name + salt
    if getattr(param, "tensor_model_parallel", False):
        whole += f"@{parallel_state.get_tensor_model_parallel_rank()}"
    if ".experts." in name:
        whole += f"@{parallel_state.get_expert_model_parallel_rank()}"
    return torch.randn(param.shape, generator=torch.Generator().manual_seed(zlib.crc32(whole.encode())))


def fill(model, config, vp_stage):
    for name, param in model.named_parameters():
        param.data.copy_(values(param, whole_name(model, config, name, vp_stage), ""))


def note_modules(case, model, config, vp_stage):
    """What Transformer Engine's modules keep beside their weights, as bytes or as a tensor of them, in core's own modules: of each
    module its own, alike on the ranks that share it."""
    for name, module in model.named_modules():
        if hasattr(module, "_extra") and name != "output_layer":  # whose is to be empty in torch_dist
            whole = whole_name(model, config, name, vp_stage)
            raw = torch.frombuffer(bytearray(f"{case['extra']} of {whole}".encode()), dtype=torch.uint8)
            module._extra = raw if case["extra"] == "tensor" else io.BytesIO(raw.numpy().tobytes())


def keep_extra_state():
    from megatron.core.tensor_parallel import layers
    for kind in layers.ColumnParallelLinear, layers.RowParallelLinear:
        kind._extra = None
        kind.get_extra_state = lambda self: self._extra
        kind.set_extra_state = lambda self, state: setattr(self, "_extra", state)


def spoil(chunks, optimizer):
    """What is not loaded shows."""
    with torch.no_grad():
        for model in chunks:
            for param in model.parameters():
                param.fill_(123.0)
            for module in model.modules():
                if hasattr(module, "_extra"):
                    module._extra = None


def step(chunks, wrapped, optimizer):
    """One step with gradients made of the weights, which are the same however a parameter is cut; whether it was taken."""
    for model, ddp in zip(chunks, wrapped):
        ddp.zero_grad_buffer()
        for _, param in model.named_parameters():
            if param.requires_grad:
                param.main_grad.copy_(torch.sin(50 * param.detach().float()))
    return optimizer.step()[0]


def arguments(case):
    return argparse.Namespace(
        tensor_model_parallel_size=case["tp"], pipeline_model_parallel_size=case["pp"], expert_model_parallel_size=case["ep"],
        virtual_pipeline_model_parallel_size=case["vpp"] if case["vpp"] > 1 else None, num_layers=case["layers"],
        hidden_size=case["hidden"], num_attention_heads=case["heads"], num_query_groups=case["groups"], group_query_attention=True,
        ffn_hidden_size=case["ffn"], swiglu=case["gated"], untie_embeddings_and_output_weights=not case["tied"],
        padded_vocab_size=case["vocab"], make_vocab_size_divisible_by=1, bf16=case["bf16"], num_experts=case["experts"], moe_grouped_gemm=False,
        use_distributed_optimizer=case["distributed"], transformer_impl=case.get("impl", "local"), mtp_num_layers=case["mtp"] or None,
        overlap_grad_reduce=False, ddp_bucket_size=None, world_size=world_of(case), data_parallel_size=case["dp"],
        multi_latent_attention=case["mla"], q_lora_rank=4 if case["mla"] else None, kv_lora_rank=4, qk_pos_emb_head_dim=2)


def folder_of(case, path):
    from megatron.core import parallel_state as p
    return (f"{path}/mp_rank_{p.get_tensor_model_parallel_rank():02d}" +
            (f"_{p.get_pipeline_model_parallel_rank():03d}" if case["pp"] > 1 else "") +
            (f"_{p.get_expert_model_parallel_rank():03d}" if case["ep"] > 1 else ""))


def save_rank_files(case, chunks, optimizer, path):
    """As save_checkpoint of Megatron-LM with --ckpt-format torch."""
    from megatron.core import parallel_state
    folder, saves = folder_of(case, path), parallel_state.get_expert_data_parallel_rank() == 0
    if saves:
        os.makedirs(folder, exist_ok=True)
    dist.barrier()
    if case["distributed"]:
        optimizer.save_parameter_state(folder + "/distrib_optim.pt")
    if saves:
        state = {"args": arguments(case), "checkpoint_version": 3.0, "iteration": case["iteration"]}
        for chunk, model in enumerate(chunks):
            state["model" if len(chunks) == 1 else f"model{chunk}"] = model.state_dict_for_save_checkpoint()
        state["optimizer"] = optimizer.state_dict()
        torch.save(state, folder + "/model_optim_rng.pt")
    dist.barrier()


def load_rank_files(case, chunks, optimizer, path):
    """As load_checkpoint of Megatron-LM; what a module was not given is an error."""
    folder = folder_of(case, path)
    state = torch.load(folder + "/model_optim_rng.pt", weights_only=False)
    for chunk, model in enumerate(chunks):
        model.load_state_dict(state["model" if len(chunks) == 1 else f"model{chunk}"], strict=True)
    optimizer.load_state_dict(state["optimizer"])
    if case["distributed"]:
        optimizer.load_parameter_state(folder + "/distrib_optim.pt", update_legacy_format=False)


def metadata_of(case):
    from megatron.core import parallel_state
    made = {"chained_optim_avoid_prefix": True, "singleton_local_shards": case.get("singleton", False),
            "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    if case["distributed"]:
        made["distrib_optim_sharding_type"] = case.get("sharding", "fully_reshardable")
    return made


def sharded(case, chunks, optimizer, is_loading):
    state, metadata = {}, metadata_of(case)
    for chunk, model in enumerate(chunks):
        state["model" if len(chunks) == 1 else f"model{chunk}"] = model.sharded_state_dict(metadata=metadata)
    models = {k: v for k, v in state.items()}
    whole = models["model"] if len(chunks) == 1 else models
    state["optimizer"] = optimizer.sharded_state_dict(whole, is_loading=is_loading, metadata=metadata)
    return state


def save_torch_dist(case, chunks, optimizer, path):
    from megatron.core import dist_checkpointing
    if dist.get_rank() == 0:
        os.makedirs(path, exist_ok=True)
    dist.barrier()
    state = {"args": arguments(case), "checkpoint_version": 3.0, "iteration": case["iteration"]}
    state.update(sharded(case, chunks, optimizer, False))
    content = {k: v for k, v in metadata_of(case).items() if k != "dp_cp_group"}
    dist_checkpointing.save(state, path, content_metadata=content)
    dist.barrier()


def load_torch_dist(case, chunks, optimizer, path):
    from megatron.core import dist_checkpointing
    state = dist_checkpointing.load(sharded(case, chunks, optimizer, True), path)
    for chunk, model in enumerate(chunks):
        model.load_state_dict(state["model" if len(chunks) == 1 else f"model{chunk}"], strict=True)
    optimizer.load_state_dict(state["optimizer"])


def plain(value):
    """Without what differs between two equal states: tensors as they are, the rest by value."""
    if isinstance(value, io.BytesIO):
        return torch.frombuffer(bytearray(value.getvalue()), dtype=torch.uint8)
    if torch.is_tensor(value):
        return value.detach().clone()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def inside(optimizer):
    """All that a step depends on: masters, moments, steps, options."""
    out = []
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        kept = []
        inner = one.optimizer
        for group in inner.param_groups:
            for param in group["params"]:
                kept.append([plain(param), plain(inner.state.get(param, {}))])
            kept.append({k: plain(v) for k, v in group.items() if k != "params"})
        out.append(kept)
    return out


def picture(chunks, optimizer):
    return {"model": [plain({k: v for k, v in m.state_dict().items() if v is not None}) for m in chunks], "optimizer": inside(optimizer)}


def worker(rank, world, port, case, job, paths, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    start(case)
    chunks, wrapped, optimizer = build(case)
    if job == "save":
        assert step(chunks, wrapped, optimizer)
        assert step(chunks, wrapped, optimizer)
        if "ranks" in paths:
            save_rank_files(case, chunks, optimizer, paths["ranks"])
        if "dist" in paths:
            save_torch_dist(case, chunks, optimizer, paths["dist"])
    else:
        spoil(chunks, optimizer)
        for one in optimizer.chained_optimizers if case["distributed"] else []:
            one._init_optimizer_states_with_dummy_values()  # PyTorch's Adam says its step in the state alone
        (load_rank_files if job == "load ranks" else load_torch_dist)(case, chunks, optimizer, paths)
        loaded = picture(chunks, optimizer)
        assert step(chunks, wrapped, optimizer)
        with open(f"{out}.{rank}", "wb") as f:
            pickle.dump({"loaded": loaded, "stepped": picture(chunks, optimizer)}, f)
    dist.barrier()
    dist.destroy_process_group()


def run(case, job, paths, out=""):
    """Of a job that loads: each rank's picture, after it loaded and after a step."""
    import torch.multiprocessing as mp
    import megatron.core.models.gpt, megatron.core.optimizer  # noqa: F401, E401  once, and not in each child
    torch.set_num_threads(1)
    world = world_of(case)
    port = 29700 + (os.getpid() + zlib.crc32(repr((case, job, paths)).encode())) % 5000
    mp.start_processes(worker, (world, port, case, job, paths, out), nprocs=world, start_method="fork")
    if job == "save":
        return None
    return [pickle.load(open(f"{out}.{rank}", "rb")) for rank in range(world)]


def differences(a, b, at=""):
    """Where two pictures differ."""
    if torch.is_tensor(a) and torch.is_tensor(b):
        same = a.shape == b.shape and torch.equal(a.float(), b.float())
        return [] if same else [at]
    if isinstance(a, dict) and isinstance(b, dict):
        out = [f"{at}.{k} (one alone)" for k in a.keys() ^ b.keys()]
        return out + [d for k in a.keys() & b.keys() for d in differences(a[k], b[k], f"{at}.{k}")]
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return [f"{at} ({len(a)} and {len(b)})"]
        return [d for i, (x, y) in enumerate(zip(a, b)) for d in differences(x, y, f"{at}[{i}]")]
    return [] if a == b else [f"{at} ({a!r} and {b!r})"]
