"""h5py reads what we write in HDF5, partial reads included; and we read what h5py writes, in many dtypes and layouts, as h5py itself does."""
import hashlib, json, pathlib, shutil, sys, tempfile
from support import SAMPLES, compare, done, samples, tool
try:
    import h5py, numpy as np
except ImportError as e:
    print(f"skipped: {e}"); sys.exit(77)

EXIT_UNSUPPORTED = 5


def checkpoint(case):
    inside = [p for p in (case / "checkpoint").iterdir()]
    return inside[0] if len(inside) == 1 and inside[0].is_file() else case / "checkpoint"


def listing(path):
    """{name: (dtype, shape, sha256)} as ckpt-inspect hash prints it, and the values of ls."""
    hashes = json.loads(tool("ckpt-inspect", "hash", path, "--format", "json"))
    values = json.loads(tool("ckpt-inspect", "ls", path, "--format", "json"))["values"]
    return {t["name"]: (t["dtype"], t["shape"], t["sha256"]) for t in hashes["tensors"]}, values


def digest(array):
    array = np.asarray(array)
    return hashlib.sha256(np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"))).tobytes()).hexdigest()


def h5py_view(f):
    """{name: (shape, sha256)} of a file as h5py sees it."""
    out = {}
    def visit(name, o):
        if isinstance(o, h5py.Dataset) and not h5py.check_string_dtype(o.dtype):
            out[name.replace("/", ".")] = (list(o.shape), digest(o[()]))
    f.visititems(visit)
    return out


# ---- what we write ---------------------------------------------------------------------------

def written():
    """Every tensor of every sample, found by h5py at the path that the names say, whole and in part."""
    n = parts = 0
    for case, expected in samples("dcp", "torchsave", "safetensors", "olmo-core", "hdf5"):
        dtypes = {t["dtype"] for t in expected["tensors"]}
        if "rankfiles" in case.name or case.name == "torchscript" or dtypes & {"qint8", "quint8", "qint32"}:
            continue
        with tempfile.TemporaryDirectory() as d:
            out = pathlib.Path(d) / "out.h5"
            tool("ckpt-convert", checkpoint(case), out, "--opaque", "drop")
            with h5py.File(out, "r") as f:
                assert f.attrs["tessera.version"] == 1
                names = json.loads(bytes(f["tessera.state"][()])).get("names", {}) if "tessera.state" in f else {}
                seen = {names.get(o.name[1:], k): o for k, o in find_datasets(f)}
                seen.pop("tessera.state", None)
                for t in expected["tensors"]:
                    o = seen[t["key"]]
                    assert list(o.shape) == t["shape"], (case.name, t)
                    assert hashlib.sha256(o[()].tobytes()).hexdigest() == t["sha256"], (case.name, t["key"])
                    named = o.attrs.get("dtype", o.dtype.name)
                    assert named in (t["dtype"], "bool") or t["dtype"] == "complex32", (case.name, t, named)
                    assert o.chunks is None and (o.id.get_offset() is None or o.id.get_offset() % 64 == 0)
                    if o.ndim and o.shape[0] > 2:
                        assert o[1:-1].tobytes() == o[()][1:-1].tobytes()
                        parts += 1
                    n += 1
    done(n, f"tensors of our HDF5 files equal in h5py; {parts} read in part")


def find_datasets(f):
    found = []
    f.visititems(lambda name, o: found.append((name.replace("/", "."), o)) if isinstance(o, h5py.Dataset) else None)
    return found


def attributes():
    """Numbers, texts and lists of a state dict are attributes of native types."""
    import torch
    state = {"optim": {"param_groups": [{"lr": 0.25, "betas": (0.5, 0.75), "nesterov": True, "name": "größe", "steps": [1, 2, 3],
                                         "tags": ["a", ""], "none": None}]}, "epoch": 7, "w": torch.arange(4.0)}
    with tempfile.TemporaryDirectory() as d:
        source, out = pathlib.Path(d) / "in.pt", pathlib.Path(d) / "out.h5"
        torch.save(state, source)
        tool("ckpt-convert", source, out)
        with h5py.File(out, "r") as f:
            g = f["optim/param_groups/0"].attrs
            assert f.attrs["epoch"] == 7 and g["lr"] == 0.25 and g["betas"].tolist() == [0.5, 0.75]
            assert g["nesterov"] == True and g["nesterov"].dtype == np.bool_ and g["name"] == "größe"
            count = len(g)
            assert g["steps"].tolist() == [1, 2, 3] and list(g["tags"]) == ["a", ""]
        with h5py.File(out, "r+") as f:  # and the library can change what we wrote
            f["optim/param_groups/0"].attrs["lr"] = 0.125
            f.create_dataset("more/x", data=np.arange(3))
            f["w"][1] = 9
        hashes, values = listing(out)
        assert values["optim.param_groups.0.lr"] == 0.125 and values["optim.param_groups.0.betas"] == [0.5, 0.75], values
        assert "more.x" in hashes and hashes["w"][2] == digest(np.array([0, 9, 2, 3], "f4"))
        done(count, "attributes of native types")


def empty_and_large_groups():
    from safetensors.numpy import save_file
    with tempfile.TemporaryDirectory() as d:
        for count in (0, 1, 9, 2000):
            source, out = pathlib.Path(d) / f"{count}.safetensors", pathlib.Path(d) / f"{count}.h5"
            save_file({f"layer.{i}.weight": np.full((2, 2), i, "f4") for i in range(count)}, source)
            tool("ckpt-convert", source, out)
            with h5py.File(out, "r") as f:
                assert len([k for k in f if k.startswith("layer")]) == count
                for i in range(0, count, 97):
                    assert f[f"layer.{i}.weight"][1, 1] == i
    done(4, "groups of up to 2000 links")


# ---- what h5py writes ------------------------------------------------------------------------

def layouts():
    """Random arrays, in every dtype, layout, filter, byte order and library bound."""
    rng = np.random.default_rng(11)
    kinds = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16", ">f4", ">f8", ">i2", ">u4", ">c8"]
    options = [dict(), dict(chunks=True), dict(chunks=True, compression="gzip"), dict(chunks=True, compression="lzf"),
               dict(chunks=True, compression="gzip", shuffle=True, fletcher32=True), dict(chunks=True, fletcher32=True),
               dict(chunks=True, compression="lzf", shuffle=True)]
    shapes = [(), (0,), (7,), (5, 9), (4, 3, 6), (1, 1, 1, 2), (13, 1, 5), (3, 0, 2), (64, 33)]
    n = 0
    for bounds in (None, ("earliest", "v108"), ("v108", "v108"), ("v110", "v110")):
        for user_block in (0, 512):
            with tempfile.TemporaryDirectory() as d:
                path = pathlib.Path(d) / "x.h5"
                with h5py.File(path, "w", libver=bounds, userblock_size=user_block) as f:
                    for k in kinds:
                        for i, o in enumerate(options):
                            shape = shapes[int(rng.integers(len(shapes)))]
                            data = (rng.standard_normal(shape) * 50).astype(k) if "u" not in k else rng.integers(0, 99, shape).astype(k)
                            o = dict(o) if shape else {}
                            if o and 0 not in shape and rng.random() < .5:
                                o["chunks"] = tuple(int(rng.integers(1, s + 1)) for s in shape)
                            if o and rng.random() < .5:
                                o["maxshape"] = tuple(None if j == 0 or rng.random() < .2 else s for j, s in enumerate(shape))
                            if o and 0 in shape and "maxshape" not in o:
                                o = {}
                            f.create_dataset(f"g{i}/{k}", data=data, **o)
                    part = f.create_dataset("partly", shape=(20, 7), dtype=">i4", chunks=(3, 2), fillvalue=-5)
                    part[4:9, 3] = 77
                    f.create_dataset("never", shape=(6, 6), dtype="f8", chunks=(2, 2), fillvalue=1.5)
                    early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                    early.set_chunk((3, 4)); early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
                    h5py.h5d.create(f.id, b"early", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((7, 9)), early)
                    f["early"][2:5] = 3
                    grown = f.create_dataset("grown", shape=(4, 4), maxshape=(None, None), chunks=(3, 3), dtype="u2", compression="gzip")
                    grown[...] = 8; grown.resize((9, 2)); grown[7:] = 4
                with h5py.File(path, "r") as f:
                    want = h5py_view(f)
                got, _ = listing(path)
                assert {k: list(v[1:]) for k, v in got.items()} == {k: [v[0], v[1]] for k, v in want.items()}, \
                    [(k, got.get(k), want.get(k)) for k in set(got) | set(want) if k not in got or k not in want or tuple(got[k][1:]) != want[k]][:3]
                n += len(got)
    done(n, "datasets of h5py read as h5py reads them")


def many_chunks():
    with tempfile.TemporaryDirectory() as d:
        path = pathlib.Path(d) / "x.h5"
        data = np.arange(20000 * 3, dtype="f4").reshape(20000, 3)
        with h5py.File(path, "w") as f:
            f.create_dataset("x", data=data, chunks=(1, 3))
        got, _ = listing(path)
        assert got["x"][2] == digest(data)
    done(20000, "chunks of one dataset")


def virtual():
    """Random virtual datasets: strided, sliced, permuted over files; with holes; over chunked sources; nested; in one file."""
    rng = np.random.default_rng(5)
    n = 0
    for case in range(40):
        with tempfile.TemporaryDirectory() as d:
            d = pathlib.Path(d)
            rows, cols, files = int(rng.integers(1, 7)), int(rng.integers(1, 9)), int(rng.integers(1, 5))
            chunked = rng.random() < .5
            kind = ("f4", ">i8", "c8")[case % 3]
            lay = h5py.VirtualLayout((files * rows, 2 * cols), kind)
            stack = h5py.VirtualLayout((files, rows, cols), kind)
            for r in range(files):
                with h5py.File(d / f"rank{r}.h5", "w") as f:
                    o = dict(chunks=(int(rng.integers(1, rows + 3)), int(rng.integers(1, cols + 2))), compression="gzip", shuffle=True,
                             maxshape=(None, None)) if chunked else {}
                    f.create_dataset("part/x", data=(rng.standard_normal((rows + 2, cols + 1)) * 9).astype(kind), **o)
                source = h5py.VirtualSource(f"rank{r}.h5", "part/x", (rows + 2, cols + 1))
                stack[r] = source[1:rows + 1, :cols]
                lay[r::files, ::2] = source[:rows, 1:]          # interleaved rows, every second column
                if rng.random() < .7:
                    lay[r::files, 1::2] = source[2:, :cols]     # else a hole
            with h5py.File(d / "main.h5", "w") as f:
                f.create_virtual_dataset("mixed", lay, **({} if kind == "c8" else {"fillvalue": 3}))
                f.create_virtual_dataset("stack", stack)
                f.create_dataset("plain", data=np.arange(5, dtype="i4"))
                inner = h5py.VirtualLayout((3,), "i4"); inner[:] = h5py.VirtualSource(".", "plain", (5,))[1:4]
                f.create_virtual_dataset("same_file", inner)
                nested = h5py.VirtualLayout((rows, cols), kind); nested[...] = h5py.VirtualSource(".", "stack", (files, rows, cols))[files - 1]
                f.create_virtual_dataset("nested", nested)
            with h5py.File(d / "main.h5", "r") as f:
                want = h5py_view(f)
            got, _ = listing(d / "main.h5")
            assert {k: tuple(v[1:]) for k, v in got.items()} == want, (case, [(k, got[k], want[k]) for k in want if tuple(got[k][1:]) != want[k]][:2])
            assert got == listing(d)[0]                          # the folder is its main file
            n += len(got)
    done(n, "virtual datasets resolved as h5py reads them")


def conventions():
    """bfloat16 and float8: by attribute over raw bits, by opaque type, by HDF5's own float fields. Values of attributes. Enums."""
    bits = np.arange(24, dtype="u2").reshape(4, 6) * 977
    with tempfile.TemporaryDirectory() as d:
        path = pathlib.Path(d) / "x.h5"
        with h5py.File(path, "w") as f:
            f.create_dataset("u2", data=bits).attrs["dtype"] = "bfloat16"
            f.create_dataset("opaque", data=bits.view("V2")).attrs["dtype"] = "bfloat16"
            f.create_dataset("bytes_attribute", data=bits).attrs["dtype"] = np.bytes_("bfloat16")
            f.create_dataset("f8", data=bits.astype("u1")).attrs["dtype"] = "float8_e4m3fn"
            for name, size, fields, bias in (("native_bf16", 2, (15, 7, 8, 0, 7), 127), ("native_e5m2", 1, (7, 2, 5, 0, 2), 15)):
                t = h5py.h5t.IEEE_F32LE.copy(); t.set_fields(*fields); t.set_precision(8 * size); t.set_size(size); t.set_ebias(bias)
                ds = h5py.h5d.create(f.id, name.encode(), t, h5py.h5s.create_simple((4, 6)))
                raw = bits if size == 2 else bits.astype("u1")
                ds.write(h5py.h5s.ALL, h5py.h5s.ALL, raw, mtype=t)
            f.create_dataset("enum", data=np.array([0, 2, 1], "i2"), dtype=h5py.enum_dtype({"A": 0, "B": 1, "C": 2}, "i2"))
            a = f["u2"].attrs
            a["i"], a["u"], a["x"], a["t"] = np.int8(-3), np.uint64(2**64 - 1), np.float32(0.1), "tëxt"
            a["fixed"], a["grid"], a["texts"] = np.bytes_("ab"), np.arange(6).reshape(2, 3), np.array(["x", "yz"], object)
            a["yes"], a["none"], a["c"] = True, h5py.Empty("f4"), 1 + 2j
            f.create_dataset("words", data=np.array([["a", "b"], ["c", "größe"]], object), dtype=h5py.string_dtype())
        got, values = listing(path)
        want = {"u2": "bfloat16", "opaque": "bfloat16", "bytes_attribute": "bfloat16", "f8": "float8_e4m3fn", "native_bf16": "bfloat16",
                "native_e5m2": "float8_e5m2", "enum": "int16"}
        assert {k: v[0] for k, v in got.items()} == want, got
        for k in ("u2", "opaque", "bytes_attribute", "native_bf16"):
            assert got[k][2] == digest(bits), k
        assert values["u2@i"] == -3 and values["u2@x"] == float(np.float32(0.1)) and values["u2@t"] == "tëxt" and values["u2@fixed"] == "ab"
        assert values["u2@u"] in (2**64 - 1, {"__int__": str(2**64 - 1)}) and values["u2@grid"] == [[0, 1, 2], [3, 4, 5]]
        assert values["u2@texts"] == ["x", "yz"] and values["u2@yes"] is True and values["u2@none"] is None
        assert values["u2@c"] == {"__complex__": [1.0, 2.0]} and values["words"] == [["a", "b"], ["c", "größe"]]
        done(len(got) + len(values), "conventions and values")


def refused():
    """Types without a counterpart are listed, and refused by name when their bytes are wanted; the others stay readable."""
    with tempfile.TemporaryDirectory() as d:
        path = pathlib.Path(d) / "x.h5"
        with h5py.File(path, "w") as f:
            f.create_dataset("fine", data=np.arange(3.0))
            f.create_dataset("pair", data=np.zeros(2, [("a", "i4"), ("b", "f8")]))
            f.create_dataset("ragged", data=np.array([np.arange(2), np.arange(3)], object), dtype=h5py.vlen_dtype("i4"))
            f.create_dataset("packed", data=np.arange(64, dtype="i4"), chunks=(8,), scaleoffset=3)
            f.create_dataset("three", data=np.arange(3, dtype="i4"))
            some = h5py.h5s.create_simple((6,)); some.select_hyperslab((0,), (2,)); some.select_hyperslab((3,), (1,), op=h5py.h5s.SELECT_OR)
            places = h5py.h5p.create(h5py.h5p.DATASET_CREATE); places.set_virtual(some, b".", b"three", h5py.h5s.create_simple((3,)))
            h5py.h5d.create(f.id, b"irregular", h5py.h5t.STD_I32LE, h5py.h5s.create_simple((6,)), places)
            assert f["irregular"][...].tolist() == [0, 1, 0, 2, 0, 0]
        import subprocess
        from support import BIN
        for name in ("pair", "ragged", "packed"):
            p = subprocess.run([BIN / "ckpt-inspect", "hash", path, "--include", name], capture_output=True, text=True)
            assert p.returncode == EXIT_UNSUPPORTED and name in p.stderr, p
        p = subprocess.run([BIN / "ckpt-inspect", "hash", path, "--include", "irregular"], capture_output=True, text=True)
        assert p.returncode == EXIT_UNSUPPORTED and "no regular hyperslab" in p.stderr and "new[NAME] = old[NAME][...]" in p.stderr, p
        tool("ckpt-inspect", "hash", path, status=EXIT_UNSUPPORTED)
        out = json.loads(tool("ckpt-inspect", "hash", path, "--include", "fine", "--format", "json"))
        assert out["tensors"][0]["sha256"] == digest(np.arange(3.0))
        done(4, "types and selections refused by name")


if __name__ == "__main__":
    written()
    attributes()
    empty_and_large_groups()
    layouts()
    many_chunks()
    virtual()
    conventions()
    refused()
