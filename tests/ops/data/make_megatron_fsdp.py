"""Tiny states as Megatron-FSDP's checkpoints (fsdp_dtensor) name them, for the rules megatron-fsdp.

    python make_megatron_fsdp.py      writes megatron_fsdp/<case>.pt and .json beside this script

Names are those of checkpoints that megatron-core 0.16.1 made of the same modules (tests/interop/megatron_fsdp_test.py, which
also has its loaders read what becomes of them); weights are random, and state follows from them: exp_avg = 2 w + 1,
exp_avg_sq = w * w. <case>.json: the weights of torch_dist, joined and stacked by torch: name -> "[shape] sha256".
"""
import argparse, hashlib, json, os

import torch

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "megatron_fsdp")
LAYERS, HIDDEN, FFN, VOCAB, EXPERTS = 2, 4, 6, 7, 3


def weights(case):
    """torch_dist's names, layer by layer, experts and gates whole: {name: tensor}."""
    g = torch.Generator().manual_seed(9)
    r = lambda *shape: torch.randn(shape, generator=g)
    out = {"embedding.word_embeddings.weight": r(VOCAB, HIDDEN)}
    first = 2 * FFN if case != "plain" else FFN
    for layer in range(LAYERS):
        m = f"decoder.layers.{layer}."
        out[m + "self_attention.linear_qkv.layer_norm_weight"] = r(HIDDEN)
        out[m + "self_attention.linear_qkv.weight"] = r(8, HIDDEN)
        out[m + "self_attention.linear_proj.weight"] = r(HIDDEN, HIDDEN)
        if case == "experts":
            out[m + "pre_mlp_layernorm.weight"] = r(HIDDEN)
            out[m + "mlp.router.weight"] = r(EXPERTS, HIDDEN)
            out[m + "mlp.experts.experts.linear_fc1.weight"] = r(EXPERTS, first, HIDDEN)
            out[m + "mlp.experts.experts.linear_fc2.weight"] = r(EXPERTS, HIDDEN, FFN)
            continue
        out[m + "mlp.linear_fc1.layer_norm_weight"] = r(HIDDEN)
        out[m + "mlp.linear_fc1.weight"] = r(first, HIDDEN)
        out[m + "mlp.linear_fc1.bias"] = r(first)
        out[m + "mlp.linear_fc2.weight"] = r(HIDDEN, FFN)
    out["decoder.final_layernorm.weight"] = r(HIDDEN)
    out["output_layer.weight"] = r(VOCAB, HIDDEN)
    return out


def apart(case, whole):
    """As Megatron-FSDP has them."""
    out = {}
    for name, w in whole.items():
        parts = {name: w}
        if ".experts.experts." in name:
            parts = {name.replace("experts.experts.", "experts.") + str(e): w[e] for e in range(EXPERTS)}
        for part, x in parts.items():
            gated = "linear_fc1." in part and "layer_norm" not in part and case != "plain"
            out.update({part + "_w": x.chunk(2)[0].clone(), part + "_v": x.chunk(2)[1].clone()} if gated else {part: x.clone()})
    return out


def unsplit(parts):
    """Options are not cut in halves."""
    return {n.removesuffix("_w") if n.endswith("_w") else n: w for n, w in parts.items() if not n.endswith("_v")}


def main():
    os.makedirs(OUT, exist_ok=True)
    for case in ("gated", "plain", "experts"):
        whole = weights(case)
        parts = apart(case, whole)
        wrap = "module.module.module."
        options = lambda decays: {"lr": 0.001, "betas": (0.9, 0.95), "weight_decay": 0.1 if decays else 0.0,
                                  "wd_mult": 1.0 if decays else 0.0, "lr_mult": 1.0, "is_expert_parallel": False, "step": 7}
        state = {"args": argparse.Namespace(swiglu=case != "plain", num_layers=LAYERS), "checkpoint_version": 3.0, "iteration": 7,
                 "opt_param_scheduler": {"num_steps": 7, "max_lr": 0.001},
                 "model": {"module." + n: w for n, w in parts.items()},
                 "optimizer": {"state": {wrap + n: {"exp_avg": 2 * w + 1, "exp_avg_sq": w * w} for n, w in parts.items()},
                               "param_to_group_meta": {wrap + n: options(w.dim() > 1) for n, w in unsplit(parts).items()}}}
        torch.save(state, os.path.join(OUT, case + ".pt"))
        stacks = {}
        for name, w in whole.items():
            stacks.setdefault(".".join(p for p in name.split(".") if not p.isdigit()), []).append(w)
        lines = {}
        for name, ws in stacks.items():
            w = torch.stack(ws) if ".layers." in name else ws[0]
            lines[name] = str(list(w.shape)).replace(" ", "") + " " + hashlib.sha256(w.contiguous().numpy().tobytes()).hexdigest()
        json.dump(lines, open(os.path.join(OUT, case + ".json"), "w"), indent=0)


if __name__ == "__main__":
    main()
