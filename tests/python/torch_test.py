"""tessera.torch against torch.distributed.checkpoint, on several processes: the same content as dcp.save writes, loaded by both, at
other numbers of ranks; planners' storages; what must be refused."""
import collections, os, pathlib, shutil, sys, tempfile, unittest
from support import SAMPLES, samples, tool
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import multiprocessing
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
import tessera
import tessera.torch as tt


# Ranks are forked from a process that has imported what takes seconds.
multiprocessing.set_forkserver_preload(["torch", "torch.distributed.checkpoint", "torch.distributed.fsdp", "tessera.torch"])


def make_model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(13, 29), torch.nn.BatchNorm1d(29), torch.nn.Linear(29, 7))


def sharded(seed=0):
    model = make_model(seed)
    for layer in (model[0], model[2]):
        fully_shard(layer)
    return fully_shard(model)


def trained(seed=0):
    model = sharded(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(2):
        torch.manual_seed(step)
        model(torch.randn(8, 13)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def state_of(model, optimizer, step, name, rows):
    """Every kind of thing that a state may hold."""
    return {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer), "step": step, "name": name,
            "list": [1, rows, {"deep": [None, True]}], "nested": {1: 2.5, "x": {"y": step / 3}}, "ordered": collections.OrderedDict(a=1),
            "empty": {}, "blob": b"\0\xff", "big": 2**80, "tuple": (1, (2.0, "z"))}


def same(a, b):
    local = lambda t: t.to_local() if isinstance(t, DTensor) else t
    return all(torch.equal(local(x), local(y)) for x, y in zip(a, b, strict=True))


def tensors_of(model, optimizer):
    out = list(model.parameters()) + list(model.buffers())
    return out + [v for p in model.parameters() for _, v in sorted(optimizer.state[p].items()) if torch.is_tensor(v)]


def run_ranks(body, ranks, *args):
    with tempfile.TemporaryDirectory() as meeting:
        mp.start_processes(_rank, (body, ranks, meeting, args), nprocs=ranks, start_method="forkserver")


def _rank(rank, body, ranks, meeting, args):
    dist.init_process_group("gloo", init_method=f"file://{meeting}/store", rank=rank, world_size=ranks)
    try:
        body(*args)
    finally:
        dist.destroy_process_group()


def save_four_ways(folder):
    model, optimizer = trained()
    state = state_of(model, optimizer, 4, "four", torch.arange(6).reshape(2, 3))
    report = tt.save(state, folder + "/tessera")
    assert report.total_bytes > 0 and report.balance["left_out"] == [], report.document
    again = tt.save(state, checkpoint_id=folder + "/tessera", force=True)
    assert again.plan_reused
    pending = tt.async_save(state, folder + "/async")
    assert pending.result().total_bytes == report.total_bytes and pending.done()
    dcp.save({k: v for k, v in state.items() if k != "big"}, checkpoint_id=folder + "/dcp")
    writer = tt.Writer(folder + "/writer")
    dcp.save({k: v for k, v in state.items() if k != "big"}, storage_writer=writer)
    assert writer.report.total_bytes > 0


def load_all_ways(folder, ways):
    want_model, want_optimizer = trained()
    want = tensors_of(want_model, want_optimizer)
    for way in ways:
        model, optimizer = trained(seed=1)
        rows = torch.zeros(2, 3, dtype=torch.int64)
        state = state_of(model, optimizer, 0, "", rows)
        if way == "dcp":
            del state["big"]
        report = tt.load(state, folder + "/" + way)
        set_optimizer_state_dict(model, optimizer, state["optim"])
        if dist.get_world_size() == 3:  # losses depend on how a batch is cut: only the same ranks trained the same
            assert same(tensors_of(model, optimizer), want), way
        assert (state["step"], state["name"], state["nested"][1], state["nested"]["x"]["y"]) == (4, "four", 2.5, 4 / 3), state
        assert state["list"][2] == {"deep": [None, True]} and state["blob"] == b"\0\xff" and state["tuple"] == (1, (2.0, "z"))
        assert rows.tolist() == [[0, 1, 2], [3, 4, 5]] and not report.missing, report.missing
        # PyTorch's own loader takes the same from it.
        other, other_optimizer = trained(seed=2)
        theirs = {"model": get_model_state_dict(other), "optim": get_optimizer_state_dict(other, other_optimizer), "step": 0}
        dcp.load(theirs, checkpoint_id=folder + "/" + way)
        set_optimizer_state_dict(other, other_optimizer, theirs["optim"])
        assert same(tensors_of(other, other_optimizer), tensors_of(model, optimizer)) and theirs["step"] == 4, way


def read_any_format(path, rename_prefix, oracle):
    """dcp.load from a checkpoint of another format, into tensors that PyTorch shards."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with tessera.open(path) as c:
        zeros = {rename_prefix + name: torch.zeros(t.shape, dtype=getattr(torch, t.dtype))
                 for name, t in c.items() if hasattr(torch, t.dtype) and name in oracle}
    # (Gloo moves no other types; they are loaded whole on every rank.)
    state = {name: distribute_tensor(zero, mesh, [Shard(0)]) if zero.ndim and zero.dtype in (torch.float32, torch.float16) else zero
             for name, zero in zeros.items()}
    dcp.load(state, storage_reader=tt.Reader(path, rename=lambda name: rename_prefix + name))
    from support import sha256
    for name, tensor in state.items():
        assert sha256(tensor.full_tensor() if isinstance(tensor, DTensor) else tensor) == oracle[name.removeprefix(rename_prefix)], name
    assert state


def read_formats(found):
    for path, oracle in found:
        read_any_format(path, "live.", oracle)


def save_placements(folder):
    """Meshes of two dims, replicas, uneven shards, a tensor with fewer rows than ranks."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(3)
    wholes = {f"t{i}": torch.randn(*shape) for i, shape in enumerate([(5, 7), (1, 4), (8,), (3, 3, 3), (2, 9), (6, 4)])}
    cuts = [[Replicate(), Shard(0)], [Shard(0), Replicate()], [Shard(0), Shard(0)], [Shard(2), Shard(1)], [Replicate(), Replicate()],
            [Shard(0), Shard(1)]]
    state = {name: distribute_tensor(whole, mesh, cut) for (name, whole), cut in zip(wholes.items(), cuts)}
    tt.save(state, folder + "/placed")
    with tessera.open(folder + "/placed") as c:
        for name, whole in wholes.items():
            assert torch.equal(c[name].torch(), whole), name
    zeros = {name: distribute_tensor(torch.zeros_like(whole), mesh, cut[::-1] if name != "t3" else cut)
             for (name, whole), cut in zip(wholes.items(), cuts)}
    tt.load(zeros, folder + "/placed")
    assert all(torch.equal(zeros[name].full_tensor(), whole) for name, whole in wholes.items())


def disagree(folder):
    try:
        tt.save({"step": dist.get_rank()}, folder + "/never")
    except tessera.InvalidArgument as error:
        assert "step" in str(error)
    else:
        raise AssertionError("ranks with different steps were saved")
    assert not os.path.exists(folder + "/never")


class Torch(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def test_as_dcp_saves_and_loads(self):
        run_ranks(save_four_ways, 3, self.folder)
        reports = {way: tessera.hash(f"{self.folder}/{way}") for way in ("tessera", "async", "dcp", "writer")}
        self.assertEqual(reports["tessera"], reports["async"])
        self.assertEqual(reports["dcp"], reports["writer"])
        self.assertEqual(reports["tessera"].root, reports["dcp"].root)
        difference = tessera.diff(f"{self.folder}/tessera", f"{self.folder}/dcp")
        self.assertEqual([each.name for each in difference.values], ["big"])
        self.assertTrue(tessera.verify(f"{self.folder}/tessera").ok)
        for ranks in (3, 2):
            run_ranks(load_all_ways, ranks, self.folder, ("tessera", "async", "dcp"))

    def test_placements(self):
        run_ranks(save_placements, 4, self.folder)

    def test_a_reader_of_any_format(self):
        found = []
        for case, expected in samples("deepspeed", "safetensors", "megatron", "fairscale"):
            path = case / "checkpoint"
            try:
                with tessera.open(path) as c:
                    oracle = {t["key"]: t["sha256"] for t in expected["tensors"] if "sha256" in t and t["key"] in c}
            except tessera.Error:
                continue
            if len(oracle) >= 4 and case.parent.name not in {pathlib.Path(path).parent.parent.name for path, _ in found}:
                found.append((str(path), oracle))
        self.assertGreaterEqual(len(found), 3)
        run_ranks(read_formats, 2, found)

    def test_ranks_that_disagree(self):
        run_ranks(disagree, 2, self.folder)

    def test_one_process_without_a_group(self):
        model = make_model()
        state = {"model": model.state_dict(), "step": 1}
        tt.save(state, self.folder + "/one")
        wanted = {name: tensor.clone() for name, tensor in state["model"].items()}
        for tensor in state["model"].values():
            tensor.zero_()
        report = tt.load(state, self.folder + "/one")
        self.assertTrue(all(torch.equal(state["model"][name], wanted[name]) for name in wanted))
        self.assertIn("model.0.weight", report.loaded)
        state["more"] = torch.zeros(2)
        with self.assertRaisesRegex(tessera.Error, "more"):
            tt.load(state, self.folder + "/one")
        del state["more"], state["model"]["0.bias"]
        tt.load(state, self.folder + "/one")
        with self.assertRaisesRegex(tessera.Error, "0.bias"):
            tt.load(state, self.folder + "/one", strict=True)

    def test_objects_with_state(self):
        class Counter:
            def __init__(self):
                self.seen = {"count": 0, "history": [0]}

            def state_dict(self):
                return self.seen

            def load_state_dict(self, state):
                self.loaded = state

        saved, fresh = Counter(), Counter()
        saved.seen = {"count": 5, "history": [1, 2]}
        tt.save({"counter": saved}, self.folder + "/s")
        tt.load({"counter": fresh}, self.folder + "/s")
        self.assertEqual(fresh.loaded, {"count": 5, "history": [1, 2]})

    def test_what_is_refused(self):
        for bad in ({"x": object()}, {"x": {"y": lambda: 0}}, {"x": collections.Counter(a=1)}, {"x": [pathlib.Path("/")]}):
            with self.assertRaisesRegex(tessera.Unsupported, "x"):
                tt.save(bad, self.folder + "/never")
        with self.assertRaises(tessera.Unsupported):
            tt.save({"x": torch.zeros(2, 2).to_sparse()}, self.folder + "/never")
        with self.assertRaises(tessera.InvalidArgument):
            tt.save({"x": 1}, self.folder + "/never", storage_writer=tt.Writer(self.folder + "/never"))
        with self.assertRaises(tessera.InvalidArgument):
            tt.save({"x": 1}, self.folder + "/never", nonsense=1)
        self.assertFalse(os.path.exists(self.folder + "/never"))

    def test_views_and_types(self):
        base = torch.arange(24, dtype=torch.float64).reshape(4, 6)
        state = {"t": base.t(), "step": base[::2, 1::2], "half": base.to(torch.bfloat16), "flag": torch.tensor(True),
                 "none": torch.empty(0, 3), "complex": torch.complex(base, base), "fp8": base.to(torch.float8_e4m3fn)}
        tt.save(state, self.folder + "/v")
        loaded = {name: torch.zeros_like(tensor.contiguous()) for name, tensor in state.items()}
        tt.load(loaded, self.folder + "/v")
        for name, tensor in state.items():
            self.assertTrue(torch.equal(loaded[name].view(torch.uint8) if name == "fp8" else loaded[name],
                                        tensor.view(torch.uint8) if name == "fp8" else tensor), name)


if __name__ == "__main__":
    unittest.main()
