"""Tiny random models of mixtures of experts as several systems name and fuse them, for the shipped rules.

    python make_moe_rules.py          writes moe/<family>.pt and moe/<family>.json beside this script

<family>.pt: the hub's names, as transformers 5.24 saves them (save_pretrained), with an AdamW keyed by name.
<family>.json: of each other side, name -> "shape" and the beginning of the sha256 of every weight of the same model there.
State of the optimizer is a function of each weight, so that it says by itself whether it went with it.

"stacked" is transformers' own state_dict(). Megatron's sides are put together by torch from the hub's tensors; names
and shapes are held against models of megatron-core 0.16.1 built from the same numbers (local spec, state_dict and
sharded_state_dict). Layers that predict further tokens stand in the hub's files, not in transformers' models: they are
added here, with the copies of embedding and head that DeepSeek and GLM publish.
"""
import hashlib
import json
import os
import sys
import tempfile
import warnings

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "moe")
sys.path.insert(0, os.path.join(HERE, "..", "..", "format", "data"))
warnings.filterwarnings("ignore")
LAYERS, HIDDEN, HEADS, GROUPS, HEAD, FFN, MOE, VOCAB, EXPERTS = 2, 8, 2, 1, 4, 12, 6, 10, 3
COMMON = dict(hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=GROUPS,
              vocab_size=VOCAB, num_experts_per_tok=2, max_position_embeddings=16, tie_word_embeddings=False,
              pad_token_id=0, bos_token_id=1, eos_token_id=2)


def config_of(family):
    import transformers as t
    if family == "qwen3-moe":
        return t.Qwen3MoeConfig(**COMMON, head_dim=HEAD, intermediate_size=FFN, moe_intermediate_size=MOE,
                                num_experts=EXPERTS, mlp_only_layers=[0])
    if family == "mixtral":
        return t.MixtralConfig(**COMMON, intermediate_size=MOE, num_local_experts=EXPERTS)
    if family == "gpt-oss":
        return t.GptOssConfig(**COMMON, head_dim=HEAD, intermediate_size=MOE, num_local_experts=EXPERTS,
                              sliding_window=8)
    if family == "glm4-moe":
        return t.Glm4MoeConfig(**COMMON, head_dim=HEAD, intermediate_size=FFN, moe_intermediate_size=MOE,
                               n_routed_experts=EXPERTS, n_shared_experts=1, n_group=1, topk_group=1,
                               first_k_dense_replace=1, attention_bias=True, use_qk_norm=True)
    return t.DeepseekV3Config(**{**COMMON, "num_key_value_heads": HEADS}, intermediate_size=FFN,
                              moe_intermediate_size=MOE, n_routed_experts=EXPERTS, n_shared_experts=1, n_group=1,
                              topk_group=1, first_k_dense_replace=1, q_lora_rank=4, kv_lora_rank=4,
                              qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=4)


def hub_and_memory(family):
    """(what save_pretrained writes, state_dict()) of one model."""
    import transformers
    from safetensors.torch import load_file
    torch.manual_seed(11)
    model = transformers.AutoModelForCausalLM.from_config(config_of(family)).float()
    with torch.no_grad():
        for tensor in list(model.parameters()) + list(model.buffers()):
            tensor.copy_(torch.randn(tensor.shape))
    with tempfile.TemporaryDirectory() as d:
        model.save_pretrained(d)
        hub = load_file(os.path.join(d, "model.safetensors"))
    memory = {k: v.detach().clone() for k, v in model.state_dict().items()}
    order = [k for k in memory if k in hub]
    hub = {k: hub[k] for k in sorted(hub, key=lambda k: (order.index(k) if k in order else len(order), k))}
    if family in ("glm4-moe", "deepseek-v3"):
        for side in hub, memory:
            add_further_layer(side)
    return hub, memory


def add_further_layer(side):
    """Layer 2 predicts the token after the next one: built as layer 1, with norms and a projection of its own."""
    made = {}
    for name, tensor in list(side.items()):
        if name.startswith("model.layers.1."):
            made["model.layers.2." + name[len("model.layers.1."):]] = tensor * 0.5 + 0.25
    h = "model.layers.2."
    g = torch.Generator().manual_seed(3)
    for name, shape in (("enorm", (HIDDEN,)), ("hnorm", (HIDDEN,)), ("eh_proj", (HIDDEN, 2 * HIDDEN)),
                        ("shared_head.norm", (HIDDEN,))):
        made[h + name + ".weight"] = torch.randn(shape, generator=g)
    made[h + "embed_tokens.weight"] = side["model.embed_tokens.weight"].clone()
    made[h + "shared_head.head.weight"] = side["lm_head.weight"].clone()
    side.update(made)


def per_expert(hub):
    """GPT-OSS with a module for each expert, weights as nn.Linear has them."""
    out = {}
    for name, w in hub.items():
        if ".mlp.experts." not in name:
            out[name] = w
            continue
        base, kind = name.split("experts.")
        for e in range(EXPERTS):
            m, leaf = f"{base}experts.{e}.", "bias" if kind.endswith("_bias") else "weight"
            x = w[e] if leaf == "bias" else w[e].T
            if kind.startswith("gate_up"):
                out[m + "gate_proj." + leaf], out[m + "up_proj." + leaf] = x[0::2].clone(), x[1::2].clone()
            else:
                out[m + "down_proj." + leaf] = x.clone()
    return out


def query_groups(q, k, v):
    """Megatron: per query group the group's queries, its key, its value."""
    tail = q.shape[1:]
    parts = [x.reshape(GROUPS, -1, *tail) for x in (q, k, v)]
    return torch.cat(parts, 1).reshape(-1, *tail)


def megatron(family, hub):
    """Layer by layer, with local modules: {name: tensor}."""
    if family == "gpt-oss":
        hub = per_expert(hub)
    out, done = {}, set()

    def take(name):
        done.add(name)
        return hub[name]

    def move(old, new):
        if old in hub:
            out[new] = take(old)

    def join(olds, new, fuse):
        if olds[0] in hub:
            out[new] = fuse(*[take(x) for x in olds])

    cat = lambda *x: torch.cat(x, 0)
    move("model.embed_tokens.weight", "embedding.word_embeddings.weight")
    blocks = [(f"model.layers.{i}.", f"decoder.layers.{i}.") for i in range(LAYERS)]
    blocks.append((f"model.layers.{LAYERS}.", "mtp.layers.0.transformer_layer."))
    for h, m in blocks:
        a, s = h + "self_attn.", m + "self_attention."
        move(h + "input_layernorm.weight", m + "input_layernorm.weight")
        for w in "weight", "bias":
            if a + "k_proj." + w in hub:
                join([a + f"{x}_proj.{w}" for x in "qkv"], s + "linear_qkv." + w, query_groups)
            move(a + "o_proj." + w, s + "linear_proj." + w)
        for x, y in (("q_norm", "q_layernorm"), ("k_norm", "k_layernorm"), ("q_a_layernorm", "q_layernorm"),
                     ("kv_a_layernorm", "kv_layernorm"), ("q_a_proj", "linear_q_down_proj"), ("q_b_proj", "linear_q_up_proj"),
                     ("kv_a_proj_with_mqa", "linear_kv_down_proj"), ("kv_b_proj", "linear_kv_up_proj")):
            move(a + x + ".weight", s + y + ".weight")
        move(a + "sinks", s + "core_attention.softmax_offset")
        move(h + "post_attention_layernorm.weight", m + "pre_mlp_layernorm.weight")
        b = "block_sparse_moe." if family == "mixtral" else "mlp."
        for gate in "gate", "router":
            for w in "weight", "bias":
                move(h + b + f"{gate}.{w}", m + f"mlp.router.{w}")
        move(h + "mlp.gate.e_score_correction_bias", m + "mlp.router.expert_bias")
        one, two, down = ("w1", "w3", "w2") if family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        for e in range(EXPERTS):
            x, y = h + b + f"experts.{e}.", m + f"mlp.experts.local_experts.{e}."
            for w in "weight", "bias":
                join([x + f"{one}.{w}", x + f"{two}.{w}"], y + "linear_fc1." + w, cat)
                move(x + f"{down}.{w}", y + "linear_fc2." + w)
        for x in "mlp.", "mlp.shared_experts.":
            join([h + x + "gate_proj.weight", h + x + "up_proj.weight"], m + x + "linear_fc1.weight", cat)
            move(h + x + "down_proj.weight", m + x + "linear_fc2.weight")
    h, m = f"model.layers.{LAYERS}.", "mtp.layers.0."
    for x, y in (("enorm", "enorm"), ("hnorm", "hnorm"), ("eh_proj", "eh_proj"), ("shared_head.norm", "final_layernorm")):
        move(h + x + ".weight", m + y + ".weight")
    move("model.norm.weight", "decoder.final_layernorm.weight")
    move("lm_head.weight", "output_layer.weight")
    left = set(hub) - done - {h + "embed_tokens.weight", h + "shared_head.head.weight"}
    assert not left, left
    return out


def with_fused_norms(family, local, grouped):
    """As Transformer Engine's modules have them: norms inside of the linear layers behind them."""
    out = {}
    for name, w in local.items():
        layer = name.rsplit("pre_mlp_layernorm.", 1)[0]
        if family == "deepseek-v3":
            for x in "q", "kv":
                name = name.replace(f"self_attention.{x}_layernorm.", f"self_attention.linear_{x}_up_proj.layer_norm_")
        else:
            name = name.replace("input_layernorm.", "self_attention.linear_qkv.layer_norm_")
        if layer != name and layer + "mlp.router.weight" not in local:
            name = name.replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_")
        if grouped and ".local_experts." in name:
            base, rest = name.split("local_experts.")
            expert, module, leaf = rest.split(".")
            name = f"{base}{module}.{leaf}{expert}"
        out[name] = w
    return out


def stacked_experts(side):
    out, parts = {}, {}
    for name, w in side.items():
        if ".local_experts." not in name:
            out[name] = w
            continue
        base, rest = name.split("local_experts.")
        expert, tail = rest.split(".", 1)
        parts.setdefault(base + "experts." + tail, {})[int(expert)] = w
    out.update({name: torch.stack([ws[e] for e in range(EXPERTS)]) for name, ws in parts.items()})
    return out


def stacked_layers(side):
    out, layers = {}, {}
    for name, w in side.items():
        if not name.startswith("decoder.layers."):
            out[name] = w
            continue
        _, _, layer, tail = name.split(".", 3)
        layers.setdefault("decoder.layers." + tail, {})[int(layer)] = w
    out.update({name: torch.stack([ws[i] for i in range(LAYERS)]) for name, ws in layers.items()})
    return out


def state_of(tensors):
    """AdamW's state as functions of the weight; what is no parameter, or stored once more, has none."""
    trained = [n for n in tensors if not n.endswith(("e_score_correction_bias", "expert_bias", "embed_tokens.weight", "shared_head.head.weight"))
               or n == "model.embed_tokens.weight"]
    state = {n: {"step": torch.tensor(7.0), "exp_avg": tensors[n] * 2 + 1, "exp_avg_sq": tensors[n] ** 2} for n in trained}
    group = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "params": trained}
    return {"model": {k: v.contiguous() for k, v in tensors.items()}, "optim": {"state": state, "param_groups": [group]}}


def described(tensors):
    digest = lambda t: hashlib.sha256(t.contiguous().numpy().tobytes()).hexdigest()[:16]
    return {"model." + k: f"{list(v.shape)} {digest(v)}".replace(", ", ",") for k, v in tensors.items()}


def real_megatron(family):
    """(state_dict, sharded_state_dict) of a model of megatron-core: shapes by name."""
    from make_megatron_ranks import pretend_cuda
    import torch.distributed as dist
    if not dist.is_initialized():
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29577")
        dist.init_process_group("gloo", rank=0, world_size=1)
        pretend_cuda()
        from megatron.core import parallel_state
        parallel_state.initialize_model_parallel(1, 1)
        from megatron.core.tensor_parallel import random as tp_random
        tp_random.model_parallel_cuda_manual_seed = lambda *a, **k: None
        take_local_latent_attention()
    model = megatron_model(family)
    own = {k: tuple(v.shape) for k, v in model.state_dict().items() if torch.is_tensor(v)}
    stored = {}
    for key, value in model.sharded_state_dict(metadata={}).items():
        if not key.endswith("_extra_state"):
            for part in value.build() if hasattr(value, "build") else [value]:
                stored[part.key] = tuple(part.global_shape)
    return own, stored


def take_local_latent_attention():
    """Core's latent attention asks for Transformer Engine's classes, which only its kernels need."""
    from megatron.core.transformer import dot_product_attention, multi_latent_attention
    plain = dot_product_attention.DotProductAttention.__init__
    def init(self, *a, k_channels=None, v_channels=None, **k):
        plain(self, *a, **k)
    dot_product_attention.DotProductAttention.__init__ = init
    class Never:
        pass
    multi_latent_attention.TELinear = multi_latent_attention.TEColumnParallelLinear = Never


def megatron_model(family):
    from megatron.core.models.gpt import GPTModel, gpt_layer_specs
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
    numbers = dict(num_layers=LAYERS, hidden_size=HIDDEN, ffn_hidden_size=FFN, num_attention_heads=HEADS,
                   add_bias_linear=False, gated_linear_unit=True, activation_func=torch.nn.functional.silu,
                   use_cpu_initialization=True, normalization="RMSNorm", num_moe_experts=EXPERTS,
                   moe_ffn_hidden_size=MOE, moe_router_topk=2, gradient_accumulation_fusion=False,
                   bias_activation_fusion=False, apply_rope_fusion=False)
    kind = TransformerConfig
    if family == "deepseek-v3":
        kind = MLATransformerConfig
        numbers.update(multi_latent_attention=True, q_lora_rank=4, kv_lora_rank=4, qk_head_dim=4, qk_pos_emb_head_dim=2,
                       v_head_dim=4)
    else:
        numbers.update(num_query_groups=GROUPS, kv_channels=HEAD)
    if family in ("glm4-moe", "deepseek-v3"):
        numbers.update(moe_layer_freq=[0, 1], moe_router_enable_expert_bias=True, moe_router_score_function="sigmoid",
                       moe_shared_expert_intermediate_size=MOE, mtp_num_layers=1)
    if family == "qwen3-moe":
        numbers.update(moe_layer_freq=[0, 1])
    if family == "gpt-oss":
        numbers.update(add_bias_linear=True, softmax_type="learnable")
    numbers.update(qk_layernorm=family in ("qwen3-moe", "glm4-moe", "deepseek-v3"),
                   add_qkv_bias=family in ("gpt-oss", "glm4-moe"))
    config = kind(**numbers)
    spec = gpt_layer_specs.get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")
    more = {}
    if config.mtp_num_layers:
        more["mtp_block_spec"] = gpt_layer_specs.get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False)
    return GPTModel(config=config, transformer_layer_spec=spec, vocab_size=VOCAB, max_sequence_length=16,
                    share_embeddings_and_output_weights=False, position_embedding_type="rope", **more)


def make(family):
    hub, memory = hub_and_memory(family)
    local = megatron(family, hub)
    engine = with_fused_norms(family, local, True)
    layers = stacked_experts(with_fused_norms(family, local, False))
    sides = {"megatron": engine, "megatron-local": local}
    if family == "gpt-oss":
        sides["per-expert"] = per_expert(hub)
        assert set(memory) == set(hub) and all(torch.equal(memory[k], hub[k]) for k in hub)
    else:
        sides["stacked"] = memory
    if family in ("glm4-moe", "deepseek-v3"):
        sides["megatron-dist"] = layers
    else:
        sides["megatron-dist-layers"] = layers
        if family != "qwen3-moe":  # its first layer has no experts here, so that layers cannot be stacked
            sides["megatron-dist"] = stacked_layers(layers)
    own, stored = real_megatron(family)
    assert own == {k: tuple(v.shape) for k, v in local.items()}, set(own) ^ set(local)
    by_core = sides["megatron-dist"] if "megatron-dist" in sides else layers
    # Local modules of core name two norms otherwise in torch_dist; rules read both names.
    core_name = lambda n: n if family == "deepseek-v3" else n.replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_")
    if family != "deepseek-v3":
        assert stored == {core_name(k): tuple(v.shape) for k, v in by_core.items()}, set(stored) ^ set(map(core_name, by_core))
    else:
        assert stored == {k: tuple(v.shape) for k, v in stacked_experts(local).items()}
    torch.save(state_of(hub), f"{OUT}/{family}.pt")
    with open(f"{OUT}/{family}.json", "w") as f:
        json.dump({side: described(tensors) for side, tensors in sides.items()}, f, indent=0)
    print(family, len(hub), "tensors,", os.path.getsize(f"{OUT}/{family}.pt"), os.path.getsize(f"{OUT}/{family}.json"), "bytes,", sorted(sides))


if __name__ == "__main__":
    os.makedirs(OUT, exist_ok=True)
    for family in sys.argv[1:] or ("qwen3-moe", "mixtral", "gpt-oss", "glm4-moe", "deepseek-v3"):
        make(family)
