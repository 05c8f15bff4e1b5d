"""Writes cast_table.txt: PyTorch's .to() between real element types.

    python make_cast_table.py > cast_table.txt        (PyTorch 2.13, CPU)

`decode DTYPE HEX...` is float32 of all 256 patterns of an 8-bit type. `decode_hash DTYPE HASH` is the 64-bit
FNV-1a of the float32 of all 65536 patterns of a 16-bit type, NaNs as 7fc00000. `cast FROM TO IN:OUT ...` are pairs
of bit patterns. Float to integer appears only with values inside the integer's range: outside, PyTorch's result is
undefined.
"""
import numpy as np
import torch

FP8 = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
SMALL = ["float16", "bfloat16", *FP8]
INTS = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def dtype(name):
    return getattr(torch, name)


def patterns(tensor):
    """The bit patterns of a tensor as a list of ints."""
    width = tensor.element_size()
    return np.frombuffer(tensor.contiguous().view(torch.uint8).numpy().tobytes(), UNSIGNED[width]).tolist()


def from_patterns(values, name):
    width = dtype(name).itemsize
    raw = np.array(values, dtype=UNSIGNED[width]).tobytes()
    return torch.frombuffer(bytearray(raw), dtype=dtype(name))


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def emit(source, source_name, target_name):
    inputs = patterns(source)
    outputs = patterns(source.to(dtype(target_name)))
    wi, wo = source.element_size() * 2, dtype(target_name).itemsize * 2
    pairs = [f"{i:0{wi}x}:{o:0{wo}x}" for i, o in zip(inputs, outputs)]
    for at in range(0, len(pairs), 64):
        print("cast", source_name, target_name, *pairs[at:at + 64])


def float32_inputs(target_name, generator):
    """Every finite value of an 8-bit target or a sample of a 16-bit one, the ties between neighbours, one step to
    either side of a tie, specials and random patterns."""
    width = dtype(target_name).itemsize
    codes = np.arange(256) if width == 1 else generator.integers(0, 65536, 300)
    codes = np.unique(np.concatenate([codes, [0, 1, 2, 0x7F, 0x80, 0x7B, 0x7C] if width == 1
                                      else [0, 1, 2, 0x3FF, 0x400, 0x7BFF, 0x7C00, 0x7F7F, 0x7F80, 0x8000]]))
    exact = from_patterns(codes, target_name).to(torch.float32).numpy()
    exact = exact[np.isfinite(exact)]
    ordered = np.sort(exact)
    ties = ((ordered[1:].astype(np.float64) + ordered[:-1]) / 2).astype(np.float32)
    if width == 2:
        nexts = from_patterns(np.minimum(codes + 1, 65535), target_name).to(torch.float32).numpy()
        both = from_patterns(codes, target_name).to(torch.float32).numpy()
        with np.errstate(all="ignore"):
            ties = ((both.astype(np.float64) + nexts) / 2).astype(np.float32)
        ties = ties[np.isfinite(ties)]
    largest = np.abs(exact).max()
    with np.errstate(all="ignore"):
        edges = np.array([largest * f for f in (1.0, 1.01, 1.03125, 1.0625, 1.125, 1.25, 1.5, 2.0)], np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, 3.4e38, -3.4e38], np.float32)
    random = generator.integers(0, 2**32, 100, dtype=np.uint32).view(np.float32)
    up = np.nextafter(ties, np.float32(np.inf))
    down = np.nextafter(ties, np.float32(-np.inf))
    values = np.concatenate([exact, ties, up, down, edges, -edges, special, random])
    return torch.from_numpy(np.unique(values.view(np.uint32)).view(np.float32).copy())


def main():
    generator = np.random.default_rng(20240717)
    print("# written by make_cast_table.py with PyTorch", torch.__version__.split("+")[0])
    for name in FP8:
        values = from_patterns(range(256), name).to(torch.float32)
        print("decode", name, *(f"{v:08x}" for v in patterns(values)))
    for name in ("float16", "bfloat16"):
        values = from_patterns(range(65536), name).to(torch.float32).numpy().copy()
        values[np.isnan(values)] = np.uint32(0x7FC00000).view(np.float32)
        print("decode_hash", name, f"{fnv1a(values.tobytes()):016x}")
    for name in SMALL:
        emit(float32_inputs(name, generator), "float32", name)

    doubles = np.concatenate([generator.standard_normal(40), generator.standard_normal(40) * 1e5,
                              [0.0, -0.0, np.inf, -np.inf, np.nan, 1e300, -1e300, 1e-300, 5e-324, 65519.999, 65520.0,
                               1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-11 + 2.0**-40, 448.0, 464.0, 57344.0, 61440.0]])
    for name in [*SMALL, "float32"]:
        emit(torch.from_numpy(doubles), "float64", name)
    for name in SMALL:
        emit(from_patterns(generator.integers(0, 2 ** (8 * dtype(name).itemsize), 60), name), name, "float64")
        emit(from_patterns(generator.integers(0, 2 ** (8 * dtype(name).itemsize), 60), name), name, "bfloat16")
        emit(from_patterns(generator.integers(0, 2 ** (8 * dtype(name).itemsize), 60), name), name, "float16")

    for name in INTS:
        if name == "bool":
            source = torch.tensor([False, True])
        else:
            width = dtype(name).itemsize
            raw = generator.integers(0, 2**64, 24, dtype=np.uint64).tolist() + [0, 1, 2, 100, 127, 128, 255, 2**63, 2**64 - 1]
            source = from_patterns([v % 2 ** (8 * width) for v in raw], name)
        for target in [*INTS, *SMALL, "float32", "float64"]:
            if target != name:
                emit(source, name, target)
    for target in INTS:
        high = 1 if target == "bool" else torch.iinfo(dtype(target)).max
        low = 0 if target == "bool" else torch.iinfo(dtype(target)).min
        values = [v for v in [-1.5, -1.0, -0.75, 0.0, 0.25, 0.999, 1.0, 1.5, 2.5, 100.7, -100.7, 40000.5, -30000.5, 3e9, -2e9, 9e18, 1e19]
                  if target == "bool" or low <= int(v) <= high]
        emit(torch.tensor(values, dtype=torch.float32), "float32", target)
        emit(torch.tensor(values, dtype=torch.float64), "float64", target)


main()
