"""Weights that bitsandbytes and compressed-tensors quantize on a CPU, and GPTQ's and AWQ's published layouts.

    python quantized_cases.py [root] [seed]

`dequantized` in expected.json: what the library's own dequantization gives, computed once more in float32 (rounded once,
it is the library's result, which is asserted). The other cases of this group were written with torch 2.14.1,
compressed-tensors 0.20, transformers 5.24 and torchao 0.18.
"""
import os, sys
import torch
from safetensors.torch import save_file, load_file
import bitsandbytes, bitsandbytes.functional as bnb
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from common import *

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def write_case(root, name, tensors, config, dequantized, framework, version, notes):
    case = fresh_case(root, "quantized", name)
    os.makedirs(case + "/checkpoint")
    with inside(case):
        save_file({k: v.contiguous() for k, v in tensors.items()}, "checkpoint/model.safetensors", {"format": "pt"})
        with open("checkpoint/config.json", "w") as f:
            json.dump(config, f, indent=1)
        back = load_file("checkpoint/model.safetensors")
    write_expected(case, "hf-quantized", framework, version, back, notes=notes)
    path = case + "/expected.json"
    expected = json.load(open(path))
    expected["dequantized"] = []
    for key, (scheme, parts, weight, by) in dequantized.items():
        assert weight.dtype == torch.float32
        entry = dict(tensor_entry(key, weight), scheme=scheme, by=by)
        entry["from"] = parts
        entry["bf16_sha256"] = tensor_entry(key, weight.bfloat16())["sha256"]
        expected["dequantized"].append(entry)
    json.dump(expected, open(path, "w"), indent=1)


def four_bit(root, kind, nested, dtype):
    name = "bnb_%s%s" % (kind, "_nested" if nested else "")
    tensors, dequantized = {"norm.weight": torch.randn(8).to(dtype)}, {}
    for key, shape in (("q.weight", (24, 64)), ("k.weight", (5, 40)), ("v.weight", (130, 128))):
        weight = torch.randn(shape).to(dtype)
        codes, state = bnb.quantize_4bit(weight, blocksize=64, quant_type=kind, compress_statistics=nested)
        tensors[key] = codes
        parts = {key + "." + part: value for part, value in state.as_dict(packed=True).items()}
        tensors.update(parts)
        absmax = state.absmax
        if nested:
            absmax = bnb.dequantize_blockwise(state.absmax, state.state2) + state.offset
        halves = torch.stack([codes.view(-1) >> 4, codes.view(-1) & 15], -1).view(-1)[: weight.numel()].long()
        scales = absmax.float().repeat_interleave(64)[: weight.numel()]
        plain = (state.code[halves] * scales).view(shape)
        assert torch.equal(plain.to(dtype), bnb.dequantize_4bit(codes, state))
        dequantized[key] = ("bitsandbytes " + kind, [key, *sorted(parts)], plain, ["bitsandbytes dequantize_4bit"])
    config = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind,
                                      "bnb_4bit_use_double_quant": nested}}
    write_case(root, name, tensors, config, dequantized, "bitsandbytes", bitsandbytes.__version__,
               "k.weight ends within a block; scales are codes themselves" if nested else "k.weight ends within a block")


def eight_bit(root):
    tensors, dequantized = {"norm.weight": torch.randn(8).half()}, {}
    for key, shape in (("q", (24, 64)), ("k", (7, 33))):
        codes, scb, _ = bnb.int8_vectorwise_quant(torch.randn(shape).half())
        tensors.update({key + ".weight": codes, key + ".SCB": scb, key + ".weight_format": torch.tensor(0, dtype=torch.uint8)})
        plain = bnb.int8_vectorwise_dequant(codes, scb).float()
        dequantized[key + ".weight"] = ("bitsandbytes int8", [key + ".weight", key + ".SCB"], plain,
                                        ["bitsandbytes int8_vectorwise_dequant"])
    write_case(root, "bnb_int8", tensors, {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
               dequantized, "bitsandbytes", bitsandbytes.__version__, "SCB: the largest magnitude of each row")


def pack_rows(codes, bits):
    """[n, m] -> [n * bits / 32, m], the first code in the lowest bits (GPTQ)."""
    per = 32 // bits
    words = torch.zeros(codes.shape[0] // per, codes.shape[1], dtype=torch.int64)
    for i in range(per):
        words |= codes[i::per].long() << (bits * i)
    return words.to(torch.int64).where(words < 2 ** 31, words - 2 ** 32).to(torch.int32)


def gptq(root, name, bits, second_form, desc_act, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs, outputs, group = 96, 40, 32
    codes = torch.randint(0, 2 ** bits, (inputs, outputs), generator=generator)
    zeros = torch.randint(0 if second_form else 1, 2 ** bits, (inputs // group, outputs), generator=generator)
    scales = torch.rand(inputs // group, outputs, generator=generator).half() * 0.1
    g_idx = torch.arange(inputs) // group
    if desc_act:
        g_idx = g_idx[torch.randperm(inputs, generator=generator)]
    tensors = {"q.qweight": pack_rows(codes, bits), "q.scales": scales, "q.g_idx": g_idx.int(),
               "q.qzeros": pack_rows((zeros - (0 if second_form else 1)).t(), bits).t(),
               "q.bias": torch.randn(outputs, generator=generator).half()}
    # GPTQModel's TorchQuantLinear.dequantize_weight: scales[g_idx] * (codes - zeros[g_idx])
    plain = (codes - zeros[g_idx]).float() * scales[g_idx].float()
    assert torch.equal(plain.half(), scales[g_idx] * (codes - zeros[g_idx]))
    config = {"quantization_config": {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": desc_act,
                                      "checkpoint_format": "gptq_v2" if second_form else "gptq"}}
    write_case(root, name, tensors, config,
               {"q.weight": ("gptq", ["q.qweight", "q.scales", "q.qzeros", "q.g_idx"], plain.t().contiguous(),
                             ["GPTQModel's formula"])},
               "own writer in the published layout", "-",
               "zeros %s; weights are [outputs, inputs]" % ("as they are" if second_form else "less one"))


def awq(root, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs, outputs, group = 64, 48, 32
    codes = torch.randint(0, 16, (inputs, outputs), generator=generator)
    zeros = torch.randint(0, 16, (inputs // group, outputs), generator=generator)
    scales = torch.rand(inputs // group, outputs, generator=generator).half() * 0.1

    def pack(rows):  # AutoAWQ's WQLinear_GEMM.from_linear
        words = torch.zeros(rows.shape[0], rows.shape[1] // 8, dtype=torch.int64)
        for i, place in enumerate(AWQ_ORDER):
            words |= rows[:, place::8].long() << (4 * i)
        return words.where(words < 2 ** 31, words - 2 ** 32).to(torch.int32)

    tensors = {"q.qweight": pack(codes), "q.scales": scales, "q.qzeros": pack(zeros)}
    # AutoAWQ's dequantize_gemm: (codes - zeros) * scales
    repeat = lambda t: t.repeat_interleave(group, 0)
    plain = (codes - repeat(zeros)).float() * repeat(scales).float()
    assert torch.equal(plain.half(), (codes - repeat(zeros)) * repeat(scales))
    config = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}}
    write_case(root, "awq_gemm", tensors, config,
               {"q.weight": ("awq", ["q.qweight", "q.scales", "q.qzeros"], plain.t().contiguous(), ["AutoAWQ's formula"])},
               "own writer in the published layout", "-", "weights are [outputs, inputs]")


def asymmetric(root, seed):
    generator = torch.Generator().manual_seed(seed)
    rows, columns, group = 20, 64, 32
    codes = torch.randint(-8, 8, (rows, columns), generator=generator).to(torch.int8)
    zeros = torch.randint(-8, 8, (rows, columns // group), generator=generator).to(torch.int8)
    scales = (torch.rand(rows, columns // group, generator=generator) * 0.1).bfloat16()
    tensors = {"q.weight_packed": pack_to_int32(codes, 4), "q.weight_scale": scales,
               "q.weight_shape": torch.tensor([rows, columns]),
               "q.weight_zero_point": pack_to_int32(zeros, 4, packed_dim=0)}
    plain = (codes.float() - zeros.float().repeat_interleave(group, 1)) * scales.float().repeat_interleave(group, 1)
    config = {"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}}
    write_case(root, "int4_pack_asymmetric", tensors, config,
               {"q.weight": ("pack-quantized-int4", ["q.weight_packed", "q.weight_scale", "q.weight_zero_point", "q.weight_shape"],
                             plain, ["reference"])},
               "compressed-tensors", "0.20.0", "zero points are packed along the rows")


def main(root, seed=11):
    torch.manual_seed(seed)
    four_bit(root, "nf4", True, torch.bfloat16)
    four_bit(root, "nf4", False, torch.float16)
    four_bit(root, "fp4", False, torch.bfloat16)
    eight_bit(root)
    gptq(root, "gptq", 4, False, True, seed)
    gptq(root, "gptq_v2_8bit", 8, True, False, seed + 1)
    awq(root, seed + 2)
    asymmetric(root, seed + 3)


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_ROOT), int(sys.argv[2]) if len(sys.argv) > 2 else 11)
