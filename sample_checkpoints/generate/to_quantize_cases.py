"""Plain models, and what quantizing them gives: by torchao, compressed-tensors and DeepSeek's formula.

    python to_quantize_cases.py [root] [seed]

`quantized` in expected.json: for each scheme the tensors of the result, and under `dequantized` what they mean in float32.
Needs torchao 0.18 and compressed-tensors 0.20.
"""
import os, sys
import torch
import safetensors
from safetensors.torch import save_file
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.quant_scheme import NVFP4A16
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from compressed_tensors.compressors.nvfp4.helpers import quantize_and_pack_fp4, unpack_fp4_from_uint8
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import to_mx
from common import *

E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6])
JOINED = [("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3")]


def unpack(packed):
    return E2M1[torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()]


def fp8_block(name, x):
    """DeepSeek-V3: the scale of a block is its largest magnitude / 448."""
    x = x.float()
    rows, columns = x.shape
    padded = torch.zeros(-(-rows // 128) * 128, -(-columns // 128) * 128)
    padded[:rows, :columns] = x
    blocks = padded.view(padded.shape[0] // 128, 128, padded.shape[1] // 128, 128)
    scale = blocks.abs().amax((1, 3)) / 448
    scale[scale == 0] = 1
    wide = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :columns]
    codes = (x / wide).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {name: codes, name + "_scale_inv": scale}, codes.float() * wide


def mx(x):
    scale, packed = to_mx(x.float(), torch.float4_e2m1fn_x2, 32, ScaleCalculationMode.RCEIL)
    scale = scale.view(torch.uint8).view(*x.shape[:-1], -1)
    packed = packed.view(torch.uint8).view(*x.shape[:-1], -1)
    plain = unpack(packed) * torch.exp2(scale.float() - 127).repeat_interleave(32, -1)
    return packed, scale, plain


def mxfp4(name, x):
    packed, scale, plain = mx(x)
    return {name + "_packed": packed, name + "_scale": scale}, plain


def mxfp4_experts(name, x):
    packed, scale, plain = mx(x)
    return {name + "_blocks": packed.view(*scale.shape, 16), name + "_scales": scale}, plain


def nvfp4(name, x, largest):
    args = QuantizationArgs(**NVFP4A16["weights"].model_dump())
    x = x.float()
    second = generate_gparam(-largest, largest)
    groups = x.view(x.shape[0], -1, 16)
    scale, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), args, global_scale=second)
    scale = scale.to(torch.float8_e4m3fn)
    packed = quantize_and_pack_fp4(x, scale.float(), global_scale=second, zero_point=None, group_size=16)
    plain = unpack(packed) * (scale.float() / second).repeat_interleave(16, -1)
    assert torch.equal(unpack(packed), unpack_fp4_from_uint8(packed, *x.shape, dtype=torch.float32))
    return {name + "_packed": packed, name + "_scale": scale, name + "_global_scale": second}, plain


def joined(name):
    layer, _, module = name[: -len(".weight")].rpartition(".")
    for modules in JOINED:
        if module in modules:
            return [layer + "." + other + ".weight" for other in modules]
    return [name]


def difficult(x, generator):
    """Blocks of zeros, of subnormal numbers, with ties, and with one large number."""
    x = x.clone()
    x[0, :32] = 0
    x[1, :32] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6] * 4)
    x[2, :32] *= 1e-30
    x[3, :16] = torch.tensor([-0.0, 448, -0.25, 1e-3] * 4)
    x[4, 16:32] *= 1e4
    if x.dtype == torch.float32:
        x[5, :32] *= 1e-38
    return x


def write(root, name, tensors, config, schemes, notes):
    case = fresh_case(root, "safetensors", name)
    os.makedirs(case + "/checkpoint")
    with inside(case + "/checkpoint"):
        save_file(tensors, "model.safetensors", {"format": "pt"})
        with open("config.json", "w") as f:
            json.dump(config, f, indent=1)
    write_expected(case, "safetensors", "safetensors", safetensors.__version__, tensors, 1, None, notes=notes)
    path = case + "/expected.json"
    expected = json.load(open(path))
    expected["quantized"] = {}
    for scheme, (chosen, quantize) in schemes.items():
        result, plain = {k: v for k, v in tensors.items() if k not in chosen}, dict(tensors)
        for key in chosen:
            parts, meant = quantize(key, tensors[key])
            result.update(parts)
            plain[key] = meant.contiguous()
        expected["quantized"][scheme] = {"tensors": [tensor_entry(k, v.contiguous()) for k, v in sorted(result.items())],
                                         "dequantized": [tensor_entry(k, v) for k, v in sorted(plain.items())]}
    json.dump(expected, open(path, "w"), indent=1)


def main(root, seed=23):
    g = torch.Generator().manual_seed(seed)
    r = lambda *shape: torch.randn(*shape, generator=g).bfloat16()
    layer = "model.layers.0."
    tensors = {"model.embed_tokens.weight": r(24, 160), "lm_head.weight": r(24, 160), layer + "input_layernorm.weight": r(160),
               layer + "self_attn.q_proj.weight": difficult(r(40, 160), g), layer + "self_attn.k_proj.weight": r(8, 160) * 3,
               layer + "self_attn.v_proj.weight": r(8, 160), layer + "self_attn.q_proj.bias": r(40),
               layer + "self_attn.o_proj.weight": difficult(r(160, 48).float(), g),
               layer + "mlp.gate_proj.weight": r(130, 160) * 0.02, layer + "mlp.up_proj.weight": r(130, 160),
               layer + "mlp.down_proj.weight": difficult(r(16, 288).half(), g), layer + "mlp.gate.weight": r(4, 160),
               layer + "experts.0.w1.weight": r(8, 32), layer + "experts.0.w3.weight": torch.zeros(8, 32).bfloat16(),
               layer + "odd_proj.weight": r(9, 36)}
    plain = ("embed_tokens", "lm_head", "mlp.gate.")
    linear = [k for k, v in tensors.items() if v.dim() == 2 and not any(word in k for word in plain)]
    whole = [k for k in linear if tensors[k].shape[1] % 32 == 0]
    groups = [k for k in linear if tensors[k].shape[1] % 16 == 0]

    def second(key, x):
        largest = max(tensors[k].float().abs().max() for k in joined(key) if k in groups)
        return nvfp4(key, x, largest.reshape(1))

    write(root, "to_quantize", tensors, {"model_type": "llama", "torch_dtype": "bfloat16"},
          {"fp8-block": (linear, fp8_block), "mxfp4": (whole, mxfp4), "nvfp4": (groups, second)},
          "a plain model of three types; some rows are no whole groups")

    experts = layer + "mlp.experts."
    tensors = {experts + "gate_up_proj": r(2, 64, 128), experts + "gate_up_proj_bias": r(2, 128),
               experts + "down_proj": r(2, 64, 64), experts + "down_proj_bias": r(2, 64),
               layer + "mlp.router.weight": r(2, 64), layer + "self_attn.q_proj.weight": r(32, 64)}
    turned = lambda key, x: mxfp4_experts(key, x.transpose(1, 2).contiguous())
    write(root, "to_quantize_experts", tensors, {"model_type": "gpt_oss", "torch_dtype": "bfloat16"},
          {"mxfp4": ([experts + "gate_up_proj", experts + "down_proj"], turned)},
          "GPT-OSS's stacked experts as transformers has them, [experts, inputs, outputs]")


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_ROOT), int(sys.argv[2]) if len(sys.argv) > 2 else 23)
