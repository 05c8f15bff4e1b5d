"""Mixtures of experts by --rules, taken by transformers and megatron-core: every key, no key left at its initial value.

For each family a random model of transformers is saved as the hub has it; what ckpt-convert makes of it is loaded by
transformers (stacked experts), by load_state_dict of megatron-core's own model (rank files, local modules) and by its
dist_checkpointing (torch_dist), and comes back equal. Run in tests/soak/run, as it builds models.
"""
import os, sys, tempfile

from support import ROOT, done, tool
import torch

sys.path.insert(0, str(ROOT / "tests" / "ops" / "data"))


def save_hub(family, hub, folder):
    import make_moe_rules as cases
    from safetensors.torch import save_file
    os.makedirs(folder)
    save_file({k: v.contiguous() for k, v in hub.items()}, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    cases.config_of(family).save_pretrained(folder)


def of_layers(tensors):
    """Without the layer that predicts further tokens, which transformers' models do not have."""
    return {k: v for k, v in tensors.items() if not k.startswith("model.layers.2.")}


def loaded_by_transformers(family, folder, expected):
    import make_moe_rules as cases
    import transformers
    kind = type(transformers.AutoModelForCausalLM.from_config(cases.config_of(family)))
    model, info = kind.from_pretrained(folder, config=cases.config_of(family), dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"] and not info.get("mismatched_keys"), info
    assert all(k.startswith("model.layers.2.") for k in info["unexpected_keys"]), info["unexpected_keys"]
    got = model.state_dict()
    assert got.keys() == expected.keys(), got.keys() ^ expected.keys()
    assert all(torch.equal(got[k], v) for k, v in expected.items()), [k for k, v in expected.items() if not torch.equal(got[k], v)]


def fresh_megatron(family):
    import make_moe_rules as cases
    model = cases.megatron_model(family)
    with torch.no_grad():
        for tensor in list(model.parameters()) + [b for _, b in model.named_buffers() if b.is_floating_point()]:
            tensor.fill_(12345.0)
    return model


def check_filled(family, model, expected):
    got = {k: v for k, v in model.state_dict().items() if torch.is_tensor(v)}
    assert got.keys() == expected.keys(), got.keys() ^ expected.keys()
    bad = [k for k, v in expected.items() if not torch.equal(got[k].float(), v.float())]
    assert not bad, (family, bad)


def loaded_by_megatron(family, folder, work, local, *flags):
    from megatron.core import dist_checkpointing
    model = fresh_megatron(family)
    ranks = os.path.join(work, "iter_0000001")
    tool("ckpt-convert", folder, ranks, "--to", "megatron-torch", "--mesh", "tp=1", "--rules", f"{family}:megatron-local", "--strict-rules", *flags)
    state = torch.load(os.path.join(ranks, "mp_rank_00", "model_optim_rng.pt"), weights_only=False)
    wanting = model.load_state_dict(state["model"], strict=False)
    assert not wanting.unexpected_keys, wanting
    assert all(k.endswith("_extra_state") for k in wanting.missing_keys), wanting
    check_filled(family, model, local)
    layers = "megatron-dist" if family in ("glm4-moe", "deepseek-v3") else "megatron-dist-layers"
    dist = os.path.join(work, "iter_0000002")
    tool("ckpt-convert", folder, dist, "--to", "megatron-dist", "--mesh", "tp=1", "--rules", f"{family}:{layers}", "--strict-rules", *flags)
    model = fresh_megatron(family)
    asked = {k: v for k, v in model.sharded_state_dict(metadata={"non_homogeneous_layers": True}).items() if not k.endswith("_extra_state")}
    for key, value in asked.items():
        # Local modules name the norm before experts as Transformer Engine names that before a dense MLP.
        layer = key.rsplit("pre_mlp_layernorm.", 1)[0]
        if layer != key and layer + "mlp.router.weight" in asked:
            value.key = value.key.replace("mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm.")
        elif layer != key:  # beside latent attention they have one name for both
            value.key = value.key.replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_")
        # Norms of latent attention are named apart from the projections behind them, which have them inside there.
        for norm, projection in (("q_layernorm.", "linear_q_up_proj."), ("kv_layernorm.", "linear_kv_up_proj.")):
            if norm in key and key.replace(norm, projection) in asked:
                value.key = value.key.replace("self_attention." + norm, "self_attention." + projection + "layer_norm_")
    got = dist_checkpointing.load(asked, dist)
    wanting = model.load_state_dict(got, strict=False)
    assert all(k.endswith("_extra_state") for k in wanting.missing_keys), wanting
    check_filled(family, model, local)


def packed(shape, generator):
    """Random MXFP4 blocks and scales of [experts, out, in], as the hub has GPT-OSS's experts."""
    experts, rows, columns = shape
    blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), generator=generator, dtype=torch.uint8)
    return blocks, torch.randint(120, 132, (experts, rows, columns // 32), generator=generator, dtype=torch.uint8)


def packed_experts_by_megatron(work):
    """GPT-OSS as it is published, by --dequantize bf16 with the rules, in one command; by transformers' own unpacking."""
    import json
    import make_moe_rules as cases
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    cases.HIDDEN = cases.MOE = cases.COMMON["hidden_size"] = 32  # whole blocks; down_proj is square
    hub, _ = cases.hub_and_memory("gpt-oss")
    plain, stored, generator = {}, {}, torch.Generator().manual_seed(7)
    for name, tensor in hub.items():
        plain[name] = stored[name] = tensor.bfloat16()
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            del stored[name]
            blocks, scales = packed((tensor.shape[0], tensor.shape[2], tensor.shape[1]), generator)
            stored[name + "_blocks"], stored[name + "_scales"] = blocks, scales
            plain[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
            assert plain[name].shape == tensor.shape, (name, plain[name].shape)
    folder = os.path.join(work, "packed")
    save_hub("gpt-oss", stored, folder)
    config = os.path.join(folder, "config.json")
    with open(config) as f:
        said = json.load(f)
    with open(config, "w") as f:
        json.dump({**said, "quantization_config": {"quant_method": "mxfp4"}}, f)
    loaded_by_megatron("gpt-oss", folder, work, cases.megatron("gpt-oss", plain), "--dequantize", "bf16")


def main():
    import make_moe_rules as cases
    n = 0
    for family in sys.argv[1:] or ("qwen3-moe", "mixtral", "gpt-oss", "glm4-moe", "deepseek-v3"):
        hub, memory = cases.hub_and_memory(family)
        cases.real_megatron(family)  # starts Megatron's groups
        with tempfile.TemporaryDirectory() as work:
            folder, other = os.path.join(work, "hub"), os.path.join(work, "other")
            save_hub(family, hub, folder)
            side = "per-expert" if family == "gpt-oss" else "stacked"
            tool("ckpt-convert", folder, other, "--to", "hf", "--rules", f"{family}:{side}", "--strict-rules", "--copy-assets")
            if side == "stacked":
                loaded_by_transformers(family, other, of_layers(memory))
            back = os.path.join(work, "back")
            tool("ckpt-convert", other, back, "--to", "hf", "--rules", family, "--strict-rules", "--copy-assets")
            loaded_by_transformers(family, back, of_layers(memory))
            loaded_by_megatron(family, folder, work, cases.megatron(family, hub))
            n += 1
    if len(sys.argv) == 1 or "gpt-oss" in sys.argv:
        with tempfile.TemporaryDirectory() as work:
            packed_experts_by_megatron(work)
            n += 1
    done(n, "families of experts taken by transformers and megatron-core")


if __name__ == "__main__":
    main()
