#!/usr/bin/env python3
"""Writes the seeds `made_*` of the corpora: inputs that parsers refuse, or rare forms that they take, one for each reason.

usage: fuzz/make_seeds.py   (no other packages; the same bytes every time)
"""
import gzip
import io
import json
import pathlib
import struct
import tarfile
import zipfile
import zlib
from pickle import dumps

corpus = pathlib.Path(__file__).parent / "corpus"
samples = pathlib.Path(__file__).parent.parent / "sample_checkpoints"


def put(target, name, content):
    if isinstance(content, str):
        content = content.encode()
    folder = corpus / f"{target}_fuzz"
    folder.mkdir(exist_ok=True)
    (folder / f"made_{name}").write_bytes(content)


def sealed(root):
    """As our own writer ends it: the checksum of all before it."""
    body = json.dumps(root, indent=1)[:-2]
    return f'{body},\n "crc32": "{zlib.crc32(body.encode()):08x}"\n}}\n'


def stored_zip(members, method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.compress_type = method
            archive.writestr(info, content)
    return out.getvalue()


def variants(base, changes):
    """`base` with one top-level key after the other replaced."""
    for name, change in changes.items():
        yield name, {**base, **change}


# Our manifest.
seal = {"schema": "tessera.manifest/1", "format": "torch-dcp", "tool": "t",
        "source": {"path": "a", "format": "torch-dcp", "tensors": 1, "bytes": 4},
        "files": [{"path": "a", "size": 4, "crc32_per_mib": ["89abcdef"]}], "sharded": ["w"],
        "aliases": {"tied": "w"}, "root": "00",
        "tensors": [{"name": "w", "dtype": "float32", "shape": [1], "sha256": "00"}]}
put("seal", "whole", sealed(seal))
put("seal", "no_sum", json.dumps(seal))
put("seal", "short", '{"schema":"tessera.manifest/1"}')
put("seal", "wrong_sum", sealed(seal).replace('"tool": "t"', '"tool": "u"'))
for name, root in variants(seal, {
        "schema": {"schema": "other/1"}, "no_text": {"format": 1}, "source": {"source": {}},
        "size": {"files": [{"path": "a", "size": -1, "crc32_per_mib": []}]},
        "sums": {"files": [{"path": "a", "size": 4, "crc32_per_mib": []}]},
        "digits": {"files": [{"path": "a", "size": 4, "crc32_per_mib": ["89abcdeg"]}]},
        "short_sum": {"files": [{"path": "a", "size": 4, "crc32_per_mib": ["89"]}]},
        "file_list": {"files": 1}, "sharded": {"sharded": [1]}, "alias_list": {"aliases": []},
        "alias_number": {"aliases": {"a": 1}},
        "shape": {"tensors": [{"name": "w", "dtype": "x", "sha256": "", "shape": ["1"]}]}}):
    put("seal", name, sealed(root))

# The small records: a layout of flat parameters (0), Keras' index (1), a seal (2), rules (3).
unit = {"fqns": ["w"], "shapes": [[2, 3]], "alignment": 4}
for name, root in {
        "bare": {"a._flat_param": unit, "note": 1}, "none": {}, "other_keys": {"a": 1}, "no_list": {"flat_params": {"a": {}}},
        "no_name": {"flat_params": {"a": {"fqns": [1], "shapes": [[1]]}}},
        "counts": {"flat_params": {"a": {"fqns": ["w"], "shapes": []}}},
        "alignment": {"flat_params": {"a": {**unit, "alignment": 0}}},
        "shape": {"flat_params": {"a": {**unit, "shapes": [1]}}},
        "extent": {"flat_params": {"a": {**unit, "shapes": [["1"]]}}},
        "twice": {"flat_params": {"a": unit, "b": unit}},
        "ids": {"flat_params": {"a": unit}, "optimizers": {"o": 1}}}.items():
    put("records", f"layout_{name}", "0" + json.dumps(root))
put("records", "keras_name", '1{"weight_map":{"a":["../x.h5"]}}')
put("records", "keras_number", '1{"weight_map":{"a":[1]}}')
put("records", "keras_none", "1{}")

rules = {"schema": "tessera.rules/1", "sides": ["a", "b"],
         "parameters": {"heads": {"about": "x", "keys": ["n"], "default": "1"}}}
fused = {"name": "x.{l}", "or": ["y.{l}"], "axis": 1, "ratios": ["heads", 1], "groups": 2, "stack": "l"}
for name, change in {
        "no_object": None, "schema": {"schema": "x"}, "key": {"extra": 1}, "sides": {"sides": ["a"]}, "side_list": {"sides": 1},
        "side_number": {"sides": [1, 2]}, "parameters": {"parameters": 1}, "text": {"name": 1}, "no_tensors": {},
        "rule": {"tensors": [1]}, "flag": {"tensors": [{"vocabulary": 1, "a": "x"}]}, "other_side": {"tensors": [{"c": "x"}]},
        "no_side": {"tensors": [{"about": "x"}]}, "names": {"tensors": [{"parts": ["q", "k"], "a": ["x"]}]},
        "list": {"tensors": [{"parts": ["q", "k"], "a": ["x", "y"], "b": {"names": ["x", "y"]}}]},
        "named": {"tensors": [{"parts": ["q", "k"], "a": {"names": ["x"]}}]},
        "nameless": {"tensors": [{"a": {}}]}, "or": {"tensors": [{"parts": ["q", "k"], "a": {"names": ["x", "y"], "or": ["z"]}}]},
        "axis": {"tensors": [{"a": {"name": "x", "axis": 8}}]},
        "fused": {"tensors": [{"parts": ["q", "k"], "a": fused, "b": "x.{l}"}]},
        "ratios": {"tensors": [{"parts": ["q", "k"], "a": {"name": "x", "ratios": [1]}}]},
        "expression": {"tensors": [{"parts": ["q"], "a": {"name": "x", "ratios": [None]}}]},
        "unfused": {"tensors": [{"a": {"name": "x", "groups": 2}}]},
        "interleaved": {"tensors": [{"parts": ["q", "k"], "a": {"name": "x", "groups": 2, "interleaved": True}}]}}.items():
    put("records", f"rules_{name}", "3" + json.dumps([] if change is None else {**rules, **change}))
for i, flag in enumerate(["llama:hf,heads=8,groups=2", "", "x,heads=0", "x,heads", "a b:c d"]):
    put("records", f"rules_flag_{i}", "5" + flag)

keras = {"metadata.json": b"{}", "config.json": b"{}", "model.weights.h5": b"\x89HDF"}
put("records", "keras_archive", b"4" + stored_zip(keras))
put("records", "keras_deflated", b"4" + stored_zip(keras, zipfile.ZIP_DEFLATED))
put("records", "keras_no_weights", b"4" + stored_zip({"config.json": b"{}"}))
put("records", "keras_other_weights", b"4" + stored_zip({f"w{i}.h5": b"" for i in range(5)}))
put("records", "keras_one_other", b"4" + stored_zip({"w.h5": b""}))
put("records", "keras_cut", b"4" + stored_zip(keras)[:60])
put("records", "keras_short", b"4PK")

# A .zarray, NUL, the name of a chunk.
zarr = {"zarr_format": 2, "dtype": "<f4", "shape": [5], "chunks": [2], "order": "C", "compressor": None, "filters": None,
        "dimension_separator": "."}
for name, root in variants(zarr, {
        "dtype": {"dtype": "<x9"}, "structured": {"dtype": [1]}, "swapped": {"dtype": ">f4"}, "bf16": {"dtype": "bfloat16"},
        "format": {"zarr_format": 3}, "compressor": {"compressor": {"id": "zlib"}}, "order": {"order": "F"},
        "separator": {"dimension_separator": "/"}, "ranks": {"chunks": [2, 2]}, "zero": {"chunks": [0]},
        "shape": {"shape": 5}, "extent": {"shape": ["5"]}}):
    put("megatron_zarr", name, json.dumps(root) + "\0" + "0")
for name, chunk in {"negative": "-1", "beyond": "3", "huge": "9" * 30, "padded": "01", "parts": "1.1"}.items():
    put("megatron_zarr", name, json.dumps(zarr) + "\0" + chunk)
put("megatron_zarr", "list", "[]\0")
put("megatron_zarr", "no_dtype", "{}\0")

# UTF-8 of every length, and malformed. Protocol 0's UNICODE escapes are decoded by the same code.
put("pickle", "escapes", b"V\\u00e9\\u20ac\\U0001f600\n.")
for name, raw in {"lead": b"\x80", "cut": b"\xe2\x82", "tail": b"\xe2\x28\xa1", "long_3": b"\xe0\x80\x80", "long_4": b"\xf0\x80\x80\x80",
                  "beyond": b"\xf4\x90\x80\x80", "whole": "\u20ac\U0001f600 and eight more letters".encode()}.items():
    put("pickle", f"utf8_{name}", b"\x80\x02X" + struct.pack("<I", len(raw)) + raw + b".")

# Archives by their kinds.
put("torch_archive", "script.pt", (samples / "torchsave/torchscript/checkpoint/script.pt").read_bytes())
put("torch_archive", "module.pt", (samples / "torchsave/whole_module/checkpoint/module.pt").read_bytes())
for name, pickle in {"new": b"\x80\x02c__torch__.m\nNet\n)\x81.", "number": b"\x80\x02K\x01.", "call": b"\x80\x02cm\nf\n)R.", "broken": b"\x80"}.items():
    put("torch_archive", f"script_{name}", stored_zip({"a/data.pkl": pickle, "a/version": b"3\n", "a/constants.pkl": b"\x80\x02).", "a/code/x.py": b""}))
put("torch_archive", "unsummed", stored_zip({"a/data.pkl": b"\x80\x02K\x01.", "a/version": b"3\n"}).replace(
    struct.pack("<I", zlib.crc32(b"\x80\x02K\x01.")), bytes(4)).replace(struct.pack("<I", zlib.crc32(b"3\n")), bytes(4)))
put("torch_archive", "pre_release", b"PYTORCH1" + bytes(64))
put("torch_archive", "tar", b"sys_info".ljust(257, b"\0") + b"ustar\0" + bytes(512))

# Snapshots.
leaf = {"type": "Tensor", "location": "x", "serializer": "buffer_protocol", "dtype": "torch.float32", "shape": [2],
        "replicated": False, "byte_range": [0, 8]}
shard = {"offsets": [0], "sizes": [2], "tensor": leaf}


def snapshot(manifest, world_size=1):
    return json.dumps({"version": "0.1.0", "world_size": world_size, "manifest": manifest})


for name, entry in {
        "dtype": {**leaf, "dtype": "torch.x"}, "serializer": {**leaf, "serializer": "x"}, "no_field": {"type": "Tensor"},
        "sizes": {"type": "ShardedTensor", "shards": [{**shard, "sizes": [3]}]},
        "shards": {"type": "ShardedTensor", "shards": [shard, {**shard, "sizes": [1, 2], "offsets": [0, 0], "tensor": {**leaf, "shape": [1, 2]}}]},
        "chunks": {"type": "ChunkedTensor", "dtype": "torch.float64", "shape": [2], "chunks": [shard], "replicated": False},
        "big": {"type": "int", "serialized_value": "9" * 40, "readable": None, "replicated": False},
        "no_integer": {"type": "int", "serialized_value": "1x", "readable": None, "replicated": False},
        "object": {"type": "object", "location": "x", "serializer": "pickle", "obj_type": "x", "replicated": False},
        "keys": {"type": "dict", "keys": [True, False, 1, "a"]}, "odd_key": {"type": "dict", "keys": [None]}}.items():
    put("torchsnapshot", f"entry_{name}", snapshot({"0/a": entry}))
put("torchsnapshot", "rank_text", snapshot({"a/b": leaf}))
put("torchsnapshot", "rank_beyond", snapshot({"7/b": leaf}))
put("torchsnapshot", "world", snapshot({}, 0))
put("torchsnapshot", "escaped", snapshot({"0/m": {"type": "dict", "keys": ["a/b", "c%d"]}, "0/m/a%2Fb": leaf, "0/m/c%25d": leaf, "0/m/%2f%zz%": leaf}))
for i, text in enumerate(["[]", "{}", "'it''s'", "'a\n\n  b'", "'open", '"a\\N\\_\\L\\P\\e"', '"\\q"', '"a\\\n   b"', '"a\n\n  b"', '"open', "'a\nb: c"]):
    put("torchsnapshot", f"scalar_{i}", f"version: {text}\nworld_size: 1\nmanifest: {{}}\n")

# nanotron's shapes and slices.
for i, text in enumerate(["(24, 8)\n((0,4,None),(None,None,None))#((4,8,None),(None,None,None));((4,8,None),(0,8,1))#((0,4,None),(None,None,None))",
                          "(8,)\n((0,8,None),)#((0,8,None),)", "()\n()#()", "(8\n", "(-1)", "(8)x", "(8)\n((0,2,2))#((0,2,2))",
                          "(8)\n((3,2,None))#((3,2,None))", "(8)\n((0,2,None))#((0,3,None))", "(8)\n((0,9,None))#((0,9,None))",
                          "(8)\n((0,8,None))#((0,8,None))x", "(" + "1," * 80 + ")"]):
    put("nanotron", str(i), text)

# Weight deltas: an index, and blobs (zstd frames of one raw block) over a tensor of some bytes.
def raw_frame(content):
    return b"\x28\xb5\x2f\xfd\x20" + bytes([len(content)]) + (1 | len(content) << 3).to_bytes(3, "little") + content


delta_index = {"version": "000002", "base_version": "000001", "delta_encoding": "xor", "compression_format": "zstd", "checksum_format": "adler32"}
for i, metadata in enumerate([delta_index, dict(delta_index, version=3), {"version": "000002"}, {"version": 2}, {}, [], None]):
    put("weight_delta", f"index_{i}", "i " + json.dumps({"metadata": metadata, "weight_map": {}}))
delta_rest = {"whole": ["a"], "gone": ["b"], "unchanged": {"c": "00000001"}, "metadata": {"tessera.values": "{}"}}
for i, rest in enumerate([delta_rest, dict(delta_rest, gone={}), dict(delta_rest, unchanged=["c"]), {"whole": [1]}, 7]):
    put("weight_delta", f"index_ours_{i}", "i " + json.dumps({"metadata": dict(delta_index, tessera=rest), "weight_map": {"a": "model.safetensors"}}))
put("weight_delta", "index_none", "i []")
for i, (kind, size, blob) in enumerate([(b"x", 4, b"abcd"), (b"x", 4, b"abc"), (b"o", 4, b"\x01\0\0\0\x02\0\0\0Z"), (b"o", 1, b"\x01\0\0\0\x02\0\0\0Z"),
                                        (b"o", 4, b"\x01\0\0\0"), (b"o", 4, b"ab"), (b"a", 4, b"ab"), (b"c", 4, b"ab"), (b"s", 0, b""), (b"x", 0, b"")]):
    put("weight_delta", f"blob_{i}", kind + bytes([size]) + raw_frame(blob))

# metadata.pkl of torch_checkpointing, and what it may say wrong.
tc_mesh = {"device_type": "cpu", "mesh_shape": (2,), "mesh_data": (0, 1), "mesh_dim_names": None}


def tc_data(**changes):
    data = {"global_shape": [7, 4], "dtype": "torch.float32", "stride": [4, 1], "mesh_spec": tc_mesh, "placements": [{"type": "Shard", "dim": 0}]}
    data.update(changes)
    return data


def tc_group(data, type="DTensorShardingMetadata", ranks=(0, 1)):
    return {"sharding_metadata": {"type": type, "data": data}, "ranks": ranks}


def tc_metadata(groups=None, layouts=None, path='["w"]', **changes):
    item = {"nested_path_to_metadata": {path: [tc_group(tc_data())] if groups is None else groups},
            "rank_to_layout_info": {0: None, 1: None} if layouts is None else layouts}
    out = {"metadata": {"model": item}, "world_size": 2, "version": "2.0"}
    out.update(changes)
    return out


def tc_layout(file, kind="SafetensorsSerialization"):
    return {"file_path": file, "serialization_format": {"type": kind}}


tc_pieces = {"global_shape": [7, 4], "dtype": "torch.float32", "global_offsets": [[0, 0], [5, 0]], "local_offsets": [[0, 0], [2, 0]], "local_sizes": [[2, 4], [2, 4]]}
tc_first = {"metadata": {'["model","w"]': [tc_group(tc_data())]}, "rank_to_layout_info_mappings": {"0": {"model": None}, 1: {"model": None}}, "world_size": 2}
for i, value in enumerate([
        tc_metadata(), tc_first, dict(tc_first, version="1.0"), dict(tc_first, metadata={"[1]": []}), dict(tc_first, metadata={"[]": []}),
        tc_metadata(version="3.0"), tc_metadata(world_size=0), tc_metadata(world_size=1), tc_metadata(groups=[]), tc_metadata(path='{}'), tc_metadata(path='["a",-1]'),
        tc_metadata(path='["a",0,"b"]'), tc_metadata(path="["), tc_metadata(groups=[tc_group(tc_data(dtype="torch.odd"))]),
        tc_metadata(groups=[tc_group(tc_data(dtype="bfloat16"))]), tc_metadata(groups=[tc_group(tc_data(), "other")]), tc_metadata(groups=[tc_group(tc_data(), ranks=(2,))]),
        tc_metadata(groups=[tc_group(tc_data()), tc_group(tc_data(global_shape=[7, 5]))]),
        tc_metadata(groups=[tc_group(tc_data(placements=[{"type": "Partial"}]))]), tc_metadata(groups=[tc_group(tc_data(placements=[{"type": "Replicate"}]))]),
        tc_metadata(groups=[tc_group(tc_data(placements=[]))]), tc_metadata(groups=[tc_group(tc_data(placements=[{"type": "Shard", "dim": 2}]))]),
        tc_metadata(groups=[tc_group(tc_data(placements=[{"type": "StridedShard", "dim": 0, "split_factor": 2}]))]),
        tc_metadata(groups=[tc_group(tc_data(placements=[{"type": "StridedShard", "dim": 0, "split_factor": 0}]))]),
        tc_metadata(groups=[tc_group(tc_data(mesh_spec=dict(tc_mesh, mesh_shape=(0,))))]), tc_metadata(groups=[tc_group(tc_data(mesh_spec=dict(tc_mesh, mesh_data=(0,))))]),
        tc_metadata(groups=[tc_group(tc_data(mesh_spec=dict(tc_mesh, mesh_data=(1, 2))))]),
        tc_metadata(groups=[tc_group(tc_pieces, "default_tensor_v1")]), tc_metadata(groups=[tc_group(dict(tc_pieces, local_sizes=[]), "default_tensor_v1")]),
        tc_metadata(groups=[tc_group(dict(tc_pieces, local_sizes=[[2], [2, 4]]), "default_tensor_v1")]),
        tc_metadata(groups=[tc_group(dict(tc_pieces, global_shape=[7]), "default_tensor_v1")]),
        tc_metadata(groups=[tc_group(dict(tc_pieces, global_offsets=[[6, 0], [0, 0]]), "default_tensor_v1")]),
        tc_metadata(layouts={0: tc_layout("a/b.safetensors"), 1: tc_layout("c.json", "JsonSerialization")}), tc_metadata(layouts={0: tc_layout("a"), 1: tc_layout("a")}),
        tc_metadata(layouts={0: tc_layout("../a")}), tc_metadata(layouts={0: tc_layout("/a")}), tc_metadata(layouts={0: tc_layout("")}), tc_metadata(layouts={2: None}),
        tc_metadata(layouts={"x": None}), tc_metadata(layouts={-1: None}), {}, []]):
    put("torch_checkpointing", str(i), dumps(value, protocol=4))
put("torch_checkpointing", "global", dumps({"metadata": print, "world_size": 1}, protocol=4))
put("torch_checkpointing", "joined", dumps({"metadata": {"model": {"nested_path_to_metadata": {'["a.b"]': [tc_group(tc_data())], '["a","b"]': [tc_group(tc_data())]},
                                                                          "rank_to_layout_info": {}}}, "world_size": 2, "version": "2.0"}, protocol=4))

# torch-dcp's .metadata, opcode by opcode.
class Made:
    """An object of a class with a dict as its state; an instance without a state: a global."""

    def __init__(self, name, **state):
        self.name, self.state = name, state


def opcodes(value):
    if isinstance(value, bytes):
        return value
    if isinstance(value, Made):
        module = "torch" if value.name[0].islower() else "torch.distributed.checkpoint.metadata"
        made = f"c{module}\n{value.name}\n".encode()
        return made if value.name[0].islower() else made + b")\x81" + opcodes(value.state) + b"b"
    if value is None:
        return b"N"
    if isinstance(value, int):
        return b"\x8a\x08" + struct.pack("<q", value)
    if isinstance(value, str):
        return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
    if isinstance(value, tuple):
        return b"(" + b"".join(map(opcodes, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(opcodes, value)) + b"e"
    return b"}(" + b"".join(opcodes(key) + opcodes(item) for key, item in value.items()) + b"u"


def size(*extents):
    return b"ctorch\nSize\n" + opcodes((tuple(extents),)) + b"R"


def dcp(name, tensor=None, **root):
    chunk = Made("ChunkStorageMetadata", offsets=size(0), sizes=size(2))
    fields = {"properties": Made("TensorProperties", dtype=Made("float32")), "size": size(2), "chunks": [chunk], **(tensor or {})}
    index = Made("MetadataIndex", fqn="w", offset=size(0), index=0)
    info = Made("_StorageInfo", relative_path="__0_0.distcp", offset=0, length=8)
    state = {"state_dict_metadata": {"w": Made("TensorStorageMetadata", **fields)}, "planner_data": {"w": ("w",)},
             "storage_data": {index: info}, "version": "1.0.0", **root}
    put("dcp_metadata", name, b"\x80\x02" + opcodes(Made("Metadata", **state)) + b".")


def dcp_chunk(**state):
    return {"chunks": [Made("ChunkStorageMetadata", **{"offsets": size(0), "sizes": size(2), **state})]}


dcp("plain")
put("dcp_metadata", "other_class", b"\x80\x02" + opcodes(Made("Other", a=1)) + b".")
put("dcp_metadata", "number", b"\x80\x02K\x01.")
put("dcp_metadata", "no_field", b"\x80\x02" + opcodes(Made("Metadata", a=1)) + b".")
put("dcp_metadata", "twice", b"\x80\x02" + opcodes(Made("Metadata", state_dict_metadata=b"}(" + 2 * (
    opcodes("w") + opcodes(Made("BytesStorageMetadata"))) + b"u", storage_data={})) + b".")
for name, root in {
        "no_dict": {"state_dict_metadata": 1}, "number_key": {"state_dict_metadata": {1: 1}}, "other_entry": {"state_dict_metadata": {"w": Made("Other")}},
        "planner_list": {"planner_data": [1]}, "planner_path": {"planner_data": {"w": 1}}, "planner_other": {"planner_data": {"w": ("v",)}},
        "planner_deep": {"planner_data": {"w": ("a",) * 300}}, "planner_unknown": {"planner_data": {"v": ("v",)}},
        "version": {"version": "2.0"}, "extra": {"something": 1},
        "orphan": {"storage_data": {Made("MetadataIndex", fqn="v", offset=size(0), index=0): Made("_StorageInfo", relative_path="x", offset=0, length=8)}},
        "negative": {"storage_data": {Made("MetadataIndex", fqn="w", offset=size(0), index=0): Made("_StorageInfo", relative_path="x", offset=-1, length=8)}},
        "transform": {"storage_data": {Made("MetadataIndex", fqn="w", offset=size(0), index=0): Made(
            "_StorageInfo", relative_path="x", offset=0, length=8, transform_descriptors=1)}},
        "transforms": {"storage_data": {Made("MetadataIndex", fqn="w", offset=size(0), index=0): Made(
            "_StorageInfo", relative_path="x", offset=0, length=8, transform_descriptors=["zstd"] * 17)}},
        "mcore": {"mcore_data": {"w": {"nd_reformulated_orig_global_shape": (2, 1)}, "v": {}, "u": 1}},
        "storage_meta": {"storage_meta": Made("StorageMeta", checkpoint_id="/a", save_id="b", modules=["c"])}}.items():
    dcp(name, **root)
for name, tensor in {
        "dtype_text": {"properties": Made("TensorProperties", dtype="x")}, "dtype_other": {"properties": Made("TensorProperties", dtype=Made("floatx"))},
        "size_number": {"size": 1}, "size_text": {"size": ("a",)}, "size_negative": {"size": size(-1)}, "size_rank": {"size": size(*[1] * 100)},
        "size_two": {"size": b"ctorch\nSize\n" + opcodes(((1,), (2,))) + b"R"}, "size_other": {"size": b"ctorch\nfloat\n" + opcodes(((1,),)) + b"R"},
        "chunks": {"chunks": 1}, "chunk_rank": dcp_chunk(offsets=size(0, 0)), "chunk_end": dcp_chunk(offsets=size(2**63 - 1))}.items():
    dcp(name, tensor)

# Hugging Face's shards.
header = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
for name, sharding in {"text": "x", "list": "[]", "number": '{"a":1}', "no_list": '{"a":{"saved_offsets":1}}', "letters": '{"a":{"saved_offsets":["x"]}}',
                       "rank": '{"a":{"saved_offsets":[0,0]}}', "right": '{"a":{"saved_offsets":[0]}}'}.items():
    text = json.dumps({"__metadata__": {"DCP_SHARDING_INFO": sharding}, **header}).encode()
    put("safetensors", f"sharding_{name}", struct.pack("<Q", len(text)) + text + bytes(8))

# Codecs beside HDF5's, which their frameworks wrote: zstd (raw and run-length blocks), case, slices, and what is not known.
def frame(size, *blocks):
    """A zstd frame: one segment, its size in 4 bytes, no checksum."""
    out = struct.pack("<IBI", 0xFD2FB528, 0xA0, size)
    for i, (kind, length, content) in enumerate(blocks):
        out += struct.pack("<I", (i + 1 == len(blocks)) | kind << 1 | length << 3)[:3] + content
    return out


raw = frame(4, (0, 4, b"abcd"))
many = frame(9 << 17, *[(1, 1 << 17, b"a")] * 9)
for name, content in {
        "zstd": b"\5" + raw, "zstd_two": b"\5" + raw + raw, "zstd_cut": b"\5" + raw[:-2], "zstd_header": b"\5" + raw[:3], "zstd_other": b"\5abcdefgh",
        "zstd_large": b"\5" + frame(7 << 17, *[(1, 1 << 17, b"a")] * 7), "zstd_bomb": b"\5" + many, "zstd_version": b"\11" + raw,
        "zstd_later": b"\12" + raw, "case": b"\6aZ09{", "case_long": b"\6" + b"a" * 8000, "slice": b"\7" + bytes(range(20)), "slice_short": b"\7abc",
        "slice_half": b"\10abc", "unknown": b"\13abc"}.items():
    put("codecs", name, content)

# numpy's arrays and scalars, which `ls` prints.
def item(value):
    """Protocol 2's opcodes of what numpy's pickles hold."""
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, bytes):
        return b"c_codecs\nencode\n(" + item(value.decode("latin1")) + item("latin1") + b"tR"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(item, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(item, value)) + b"e"
    if isinstance(value, Made):  # a class of numpy's: called, then given its state
        return b"c" + value.name.encode() + b"\n" + item(value.state["call"]) + b"R" + (
            item(value.state["state"]) + b"b" if "state" in value.state else b"")
    return b"N" if value is None else b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def dtype(code, order="<", *, subarray=None, state=True):
    made = {"call": (code, False, True)}
    return Made("numpy\ndtype", **made, **({"state": (3, order, subarray, None, None, -1, -1, 0)} if state else {}))


def array(name, shape, of, data, fortran=False, **changed):
    kind = Made("numpy.core.multiarray\n_reconstruct", call=(None, (0,), b"b"), state=(1, shape, of, fortran, data), **changed)
    put("pickle", f"numpy_{name}", b"\x80\x02" + item(kind) + b".")


def scalar(name, of, data):
    put("pickle", f"numpy_scalar_{name}", b"\x80\x02" + item(Made("numpy.core.multiarray\nscalar", call=(of, data))) + b".")


for code in ("b1", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16", "S2", "U1", "i3", "x4", "f", "fx"):
    width = int(code[1:]) if code[1:].isdigit() else 4
    width *= 4 if code[0] == "U" else 1
    array(code, (2,), dtype(code), b"\xff" * width + b"\0" * width)
array("rows", (2, 3), dtype("i2"), bytes(12))
array("columns", (2, 3), dtype("i2"), bytes(range(12)), True)
array("big", (2,), dtype("i4", ">"), bytes(range(8)))
array("big_complex", (1,), dtype("c8", ">"), bytes(range(8)))
array("text", (2,), dtype("U2", ">"), b"\0\0\0a\0\0\0b\0\x11\xff\xff\0\0\0\0")
array("objects", (2,), dtype("O8", "|"), [1, "a"])
array("subarray", (1,), dtype("f4", subarray=((2,), "f4")), bytes(4))
array("no_state", (1,), dtype("f4", state=False), bytes(4))
array("short", (2,), dtype("f4"), bytes(4))
array("empty", (0, 4), dtype("f4"), b"")
array("huge", (2**31 - 1,) * 4, dtype("f4"), bytes(4))
array("negative", (-1,), dtype("f4"), bytes(4))
array("deep", (1,) * 65, dtype("f4"), bytes(4))
array("shape_text", ("1",), dtype("f4"), bytes(4))
array("no_dtype", (1,), 1, bytes(4))
array("no_bytes", (1,), dtype("f4"), 1)
array("other_dtype", (1,), Made("numpy\nother", call=("f4",)), bytes(4))
array("order", (1,), dtype("f4"), bytes(4), 1)
scalar("f8", dtype("f8"), bytes(8))
scalar("u8", dtype("u8"), b"\xff" * 8)
scalar("short", dtype("f8"), bytes(7))
scalar("no_bytes", dtype("f8"), 1)
for order in ("C", "F", 1):
    put("pickle", f"numpy_buffer_{order}", b"\x80\x02" + item(Made(
        "numpy.core.numeric\n_frombuffer", call=(bytes(8), dtype("f4"), (2, 1), order))) + b".")
size_shape = b"ctorch\nSize\n((" + b"K\x01" * 2000 + b"ttR"
put("pickle", "numpy_size", b"\x80\x02" + item(Made("numpy.core.multiarray\n_reconstruct", call=(None, (0,), b"b"),
    state=(1, "SHAPE", dtype("f4"), False, bytes(4)))).replace(item("SHAPE"), size_shape) + b".")

# Journals of a stage: of the plan that the target asks for, of another, torn, damaged.
def summed(content):
    return content + struct.pack("<I", zlib.crc32(content))


def journal(plan, *pieces, binding=b"the source"):
    fields = b"".join(struct.pack("<I", len(field)) + field for field in (plan, binding))
    return summed(b"TSRJRNL2" + fields) + b"".join(
        summed(struct.pack("<IIQQ", number, 0x1234, offset, length)) for number, offset, length in pieces)


plan = b"00112233445566778899aabbccddeeff"
whole = journal(plan, (0, 0, 4096), (1, 4096, 100), (0xffffffff, 0, 7))
for name, content in {
        "whole": whole, "empty": journal(plan), "other_plan": journal(plan[::-1], (0, 0, 1)), "torn": whole[:-5], "torn_header": whole[:20],
        "long_hash": whole[:8] + struct.pack("<I", 2**32 - 1) + whole[12:], "wrong_sum": whole[:58] + b"\0" + whole[59:],
        "wrong_record": whole[:74] + b"\xff" + whole[75:], "magic": b"TSRJRNL1" + whole[8:], "zeros": bytes(200),
        "unbound": journal(plan, (0, 0, 1), binding=b""), "long_binding": whole[:44] + struct.pack("<I", 2**32 - 1) + whole[48:]}.items():
    put("journal", name, content)

for path in sorted(corpus.glob("*/made_*")):
    assert path.stat().st_size <= 10240, path  # the least that a tar has

# Files for scan: pickles that call something, in every place where they may hide.
evil = b"\x80\x02cposix\nsystem\nq\x00X\x01\x00\x00\x00xq\x01\x85q\x02Rq\x03."
plain = b"\x80\x02}."


def torch_zip(pickle):
    return stored_zip({"archive/data.pkl": pickle, "archive/version": "3\n", "archive/data/0": b"\x80\x02\x00\x01"})


# Modules of torch.nn, and what only looks like one.
def text2(text):
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def dict2(entries):
    return b"}(" + b"".join(text2(key) + value for key, value in entries.items()) + b"u"


def module2(parameters=b"}", buffers=b"}", modules=b"}", unsaved=b"c__builtin__\nset\n](e\x85R", name="torch.nn.modules.linear\nLinear", **more):
    state = {"training": b"\x88", "_parameters": parameters, "_buffers": buffers, "_modules": modules, "_non_persistent_buffers_set": unsaved, **more}
    return b"c" + name.encode() + b"\n)\x81" + dict2({key: value for key, value in state.items() if value}) + b"b"


def module_seeds():
    w = (b"ctorch._utils\n_rebuild_tensor_v2\n((" + text2("storage") + b"ctorch\nFloatStorage\n" + text2("0") + text2("cpu")
         + b"K\x01tQK\x00K\x01\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR")
    one = dict2({"w": w})
    leaf = module2(one, dict2({"b": w, "s": w, "n": b"N"}), unsaved=b"c__builtin__\nset\n](" + text2("s") + b"e\x85R", plain=w, size=b"K\x01")
    hook = b"ctorch.nn.utils.spectral_norm\nSpectralNormStateDictHook\n)\x81"
    old = b"ccopy_reg\n_reconstructor\n(ctorch.nn.modules.linear\nLinear\nc__builtin__\nobject\nNtR" + dict2({"_parameters": one, "_buffers": b"}", "_modules": b"}"}) + b"b"
    bad = {"list": module2(b"](" + w + b"e"), "number": module2(b"}K\x01" + w + b"s"), "hook": module2(one, _state_dict_hooks=dict2({"a": b"cm\nf\n"})),
           "hooks": module2(one, _state_dict_hooks=b"]"), "filled_hooks": module2(one, _state_dict_hooks=b"ccollections\nOrderedDict\n]\x85R"),
           "method": module2(one, state_dict=b"N"), "class": module2(one, name="my\nNet"), "unsaved": module2(one, unsaved=b"N"),
           "unsaved_number": module2(one, unsaved=b"c__builtin__\nset\n](K\x01e\x85R"), "unsaved_two": module2(one, unsaved=b"c__builtin__\nset\n]]\x86R")}
    inside = module2(one, modules=dict2({"0": leaf, "n": b"N", "same": leaf, **bad}), unsaved=b"", _state_dict_hooks=dict2({"a": hook}), _state_dict_pre_hooks=b"N")
    yield "tree", inside
    yield "places", dict2({"a": leaf, "l": b"](" + leaf + b"e", "t": b"(" + leaf + b"t", "o": b"ccollections\nOrderedDict\n)R" + dict2({"x": old})[2:].join([b"(", b""]), "n": b"N"}) + b"K\x07" + leaf + b"s"
    yield "only_unread", module2(modules=dict2({"0": bad["class"]}))
    yield "itself", b"ctorch.nn.modules.linear\nLinear\n)\x81q\x01" + dict2({"_parameters": one, "_buffers": b"}", "_modules": dict2({"0": b"h\x01"})}) + b"b"
    yield "one_name", module2(dict2({"a.w": w}), modules=dict2({"a": module2(one)}))
    yield "shared", b"]" + module2() + b"q\x01a" + b"".join(b"0" + module2(modules=dict2({"a": b"h\x01", "b": b"h\x01"})) + b"q\x01" for _ in range(40)) + b"."
    for name, pickle in bad.items():
        yield name, pickle


for name, pickle in module_seeds():
    put("torch_archive", f"module_{name}", torch_zip(b"\x80\x02" + pickle + b"."))


def npy(kind, content):
    header = repr({"descr": kind, "fortran_order": False, "shape": (1,)}).encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def tar_file(members, form):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "../../x"
        archive.addfile(link)
    return out.getvalue()


def text4(text):
    return b"\x8c" + bytes([len(text)]) + text


lambda_config = {"class_name": "Functional", "config": {"layers": [
    {"class_name": "Lambda", "config": {"name": "l"}}, {"class_name": "get_file", "module": "keras.utils"},
    {"class_name": "Mine", "module": "my.layers"}, {"class_name": "function", "module": "os", "config": "system"}]}}
for name, content in {
        "evil": evil, "plain": plain, "torch": torch_zip(evil), "npy": npy("|O", evil), "npy_plain": npy("<f4", b"1234"),
        "packed": stored_zip({"a.npy": npy("|O", evil)}, zipfile.ZIP_DEFLATED), "inner": stored_zip({"x": stored_zip({"y": evil})}),
        "script": stored_zip({"a/data.pkl": plain, "a/constants.pkl": plain, "a/code/x.py": "x"}),
        "keras": stored_zip({"config.json": json.dumps(lambda_config), "metadata.json": "{}"}), "config": json.dumps(lambda_config),
        "config_twice": '{"class_name":"a","class_name":"Lambda"}', "row": torch_zip(plain) + torch_zip(evil),
        "prefix": b"x" * 40 + torch_zip(evil), "cut_zip": torch_zip(evil)[:-60], "legacy": plain * 3 + evil,
        "raw_between": b"\x80\x04" + text4(b"joblib") + text4(b"Wrapper") + b"\x93)\x81" + bytes([255]) * 9 + evil[2:]
                       + text4(b"pty") + b"\x94" + text4(b"spawn") + b"\x94\x93",
        "gzip": gzip.compress(evil, mtime=0), "gzip_cut": gzip.compress(evil * 9, mtime=0)[:-20],
        "tar": tar_file({"a.pkl": evil, "../out": b"x"}, tarfile.USTAR_FORMAT),
        "tar_gnu": tar_file({"d/" * 80 + "a.pkl": evil}, tarfile.GNU_FORMAT),
        "tar_pax": tar_file({"d/" * 80 + "a.pkl": evil}, tarfile.PAX_FORMAT),
        "graph": b"\x12\x08ReadFile", "lambda_graph": b'{"class_name": "Lambda"}', "yaml": b"a: !!python/object/apply:os.system\n",
        "seven": b"7z\xbc\xaf\x27\x1c...", "hdf5": b"\x89HDF\r\n\x1a\n...", "safetensors": b"\x02\0\0\0\0\0\0\0{}",
        "tensor": b"\x80\x04" + text4(b"torch.storage") + text4(b"_load_from_bytes") + b"\x93B" + struct.pack("<I", len(torch_zip(evil)))
                  + torch_zip(evil) + b"\x85R.",
        "tensor2": b"\x80\x02ctorch.storage\n_load_from_bytes\nc_codecs\nencode\nX\x04\0\0\0abcdX\x06\0\0\0latin1\x86R\x85R.",
        "opcodes": b"\x80\x02(NF1\nG12345678I1\nL2L\nJ1234K1M12\x8a\x011\x8b\x01\0\0\0aS'a'\nVa\nU\x01aT\x01\0\0\0aC\x01a"
                   b"B\x01\0\0\0a\x8d\x01\0\0\0\0\0\0\0a\x8e\x01\0\0\0\0\0\0\0a\x97\x98)]}\x8f\x88\x89t(l(d(\x91\x86\x87"
                   b"N\x85\x95" + b"\0" * 8 + b"\x82\x01\x83\x01\x00\x84\x01\0\0\0p1\ng1\nq\x02h\x02r\xff\xff\xff\x7fj\xff\xff\xff\x7f"
                   b"\x94h\x090(121P1\nK\x01Q(icmod\nname\n(cmod\nName\no]Na]N(Ne}NNs}(NNu\x8f(N\x90cmod\nName\n)\x81}b"
                   b"cmod\nName\n)}\x92cmod\nName\nNb."}.items():
    put("scan", name, content)

# Shards of ranks, without an index: "#": the second of two; "=": both.
dcp_shards = sorted((samples / "safetensors/hf_dcp_sharded_w2/checkpoint").glob("shard-*.safetensors"))
rank_header = b'{"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
rank_shard = len(rank_header).to_bytes(8, "little") + rank_header + bytes(8)
for name, content in (("empty", b""), ("garbage", b"\xff" * 40), ("header", rank_shard[:-8]), ("short", rank_shard[:-3]), ("trailing", rank_shard + b"x"),
                      ("whole", rank_shard), ("nothing", (2).to_bytes(8, "little") + b"{}"), ("dcp", dcp_shards[-1].read_bytes())):
    put("safetensors_index", f"second_{name}", b"#" + content)
    put("safetensors_index", f"both_{name}", b"=" + content)
for name, metadata, shard in (("groups", {"param_groups": "groups.json"}, "model-00001-of-00002.safetensors"), ("groups_outside", {"param_groups": "../x"}, "a"),
                              ("other_file", {}, "a.bin")):
    put("safetensors_index", name + ".json", json.dumps({"metadata": metadata, "weight_map": {"a": shard}}))
