"""States of one small model as several systems name and fuse them, made with torch's own view, cat
and chunk, so that tests can hold the shipped rules against them.

    python make_rules.py          writes rules/<family>.<side>.pt

Optimizer state is fused like its weight; groups list what the side has, in the side's order.
"""
import os
import torch

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rules")
LAYERS, HIDDEN, HEADS, GROUPS, FFN, VOCAB = 2, 8, 4, 2, 12, 10
HEAD = HIDDEN // HEADS
WIDTH = LAYERS * 3


def fused_qkv(q, k, v):
    """Megatron: per query group the group's queries, its key, its value."""
    tail = q.shape[1:]
    parts = [q.reshape(GROUPS, -1, *tail), k.reshape(GROUPS, -1, *tail), v.reshape(GROUPS, -1, *tail)]
    return torch.cat(parts, 1).reshape(-1, *tail)


def per_head_qkv(q, k, v):
    """GPT-NeoX: head by head its query, key and value."""
    tail = q.shape[1:]
    return torch.stack([x.reshape(HEADS, HEAD, *tail) for x in (q, k, v)], 1).reshape(-1, *tail)


def llama(make, bias):
    """(megatron name, [hf names], fuse, fused name, plain fuse) in the order of a Megatron model."""
    cat = lambda *x: torch.cat(x, 0)
    yield "embedding.word_embeddings.weight", {"model.embed_tokens.weight": (VOCAB, HIDDEN)}, None, None
    for i in range(LAYERS):
        m, h = f"decoder.layers.{i}.", f"model.layers.{i}."
        yield m + "self_attention.linear_qkv.layer_norm_weight", {h + "input_layernorm.weight": (HIDDEN,)}, None, None
        for w in ["weight", "bias"] if bias else ["weight"]:
            tail = (HIDDEN,) if w == "weight" else ()
            shapes = {h + f"self_attn.{x}_proj.{w}": ((HEADS if x == "q" else GROUPS) * HEAD,) + tail for x in "qkv"}
            yield m + f"self_attention.linear_qkv.{w}", shapes, fused_qkv, (h + f"self_attn.qkv_proj.{w}", cat)
        yield m + "self_attention.linear_proj.weight", {h + "self_attn.o_proj.weight": (HIDDEN, HIDDEN)}, None, None
        yield m + "mlp.linear_fc1.layer_norm_weight", {h + "post_attention_layernorm.weight": (HIDDEN,)}, None, None
        yield (m + "mlp.linear_fc1.weight", {h + f"mlp.{x}_proj.weight": (FFN, HIDDEN) for x in ("gate", "up")}, cat,
               (h + "mlp.gate_up_proj.weight", cat))
        yield m + "mlp.linear_fc2.weight", {h + "mlp.down_proj.weight": (HIDDEN, FFN)}, None, None
    yield "decoder.final_layernorm.weight", {"model.norm.weight": (HIDDEN,)}, None, None
    yield "output_layer.weight", {"lm_head.weight": (VOCAB, HIDDEN)}, None, None


def neox(make, bias):
    yield "embedding.word_embeddings.weight", {"gpt_neox.embed_in.weight": (VOCAB, HIDDEN)}, None, None
    for i in range(LAYERS):
        m, h = f"decoder.layers.{i}.", f"gpt_neox.layers.{i}."
        for w in "weight", "bias":
            tail = (HIDDEN,) if w == "weight" else ()
            shapes = {h + f"attention.{x}_proj.{w}": (HIDDEN,) + tail for x in "qkv"}
            yield m + f"self_attention.linear_qkv.{w}", shapes, per_head_qkv, (h + f"attention.query_key_value.{w}", per_head_qkv)
    yield "output_layer.weight", {"embed_out.weight": (VOCAB, HIDDEN)}, None, None


def state_of(tensors, by_id, steps):
    """A state dict with an AdamW whose moments are recognisable, steps 0-dim as torch keeps them."""
    names = list(tensors)
    state = {}
    for k, name in enumerate(names):
        w = tensors[name]
        state[k if by_id else name] = {"step": torch.tensor(float(steps)), "exp_avg": w * 2 + 1, "exp_avg_sq": w * w}
    group = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1,
             "params": list(range(len(names))) if by_id else names}
    return {"model": dict(tensors), "optim": {"state": state, "param_groups": [group]}, "epoch": 3}


def fused_state(plan, parts, side, by_id):
    """Each leaf fused like the weight: fuse(exp_avg of parts) is exp_avg of the fused weight, which
    elementwise functions of the weight are by themselves."""
    out = {}
    for megatron, shapes, fuse, plain in plan:
        values = [parts[n] for n in shapes]
        if side == "parts":
            out.update({n: parts[n] for n in shapes})
        elif side == "plain":
            if plain:
                out[plain[0]] = plain[1](*values)
            else:
                out.update({n: parts[n] for n in shapes})
        else:
            out[megatron] = fuse(*values) if fuse else values[0]
    return state_of(out, by_id, 7)


def stacked_layers(state):
    """Layers stacked in front, as torch_dist checkpoints keep them (model only)."""
    out, layers = {}, {}
    for name, w in state["model"].items():
        parts = name.split(".")
        if "layers" not in parts:
            out[name] = w
            continue
        at = parts.index("layers") + 1
        layers.setdefault(".".join(parts[:at] + parts[at + 1:]), []).append(w)
    out.update({name: torch.stack(ws) for name, ws in layers.items()})
    return out


def family(name, gen, sides, bias=False, by_id=False, seed=0):
    torch.manual_seed(seed)
    plan = list(gen(None, bias))
    parts = {n: torch.randn(*s) for _, shapes, _, _ in plan for n, s in shapes.items()}
    for side, how in sides.items():
        torch.save(fused_state(plan, parts, how, by_id), f"{HERE}/{name}.{side}.pt")
    return fused_state(plan, parts, "fused", by_id)


if __name__ == "__main__":
    os.makedirs(HERE, exist_ok=True)
    three = {"hf": "parts", "megatron": "fused", "fused": "plain"}
    whole = family("llama", llama, three, seed=1)
    torch.save({"model": stacked_layers(whole)}, f"{HERE}/llama.megatron-dist.pt")
    family("qwen2", llama, {"hf": "parts", "megatron": "fused"}, bias=True, by_id=True, seed=2)
    family("gpt-neox", neox, {"split": "parts", "megatron": "fused", "hf": "plain"}, seed=3)
