"""docs/canonical-values.md's definition in Python, run over live objects, gives the digests that `hash` takes from the pickles of them:
of every kind of value, of random ones, in every protocol, and after conversions between pickle formats, which PyTorch loads again."""
import argparse, collections, copy, dataclasses, datetime, decimal, enum, fractions, io, json, os, pathlib, random, re, struct, sys, tempfile, uuid
from support import ROOT, done, tool
import numpy, torch

DEFINITION = {}
exec(re.search(r"```python\n(.*?)```", (ROOT / "docs/canonical-values.md").read_text(), re.S).group(1), DEFINITION)
text, sha = DEFINITION["text"], DEFINITION["sha"]


class Plain:
    pass


class Slots:
    __slots__ = ("left", "right")


class OwnDict(dict):
    pass


class Color(enum.Enum):
    RED = 1
    GREEN = 2


@dataclasses.dataclass
class Point:
    x: int
    w: torch.Tensor


Pair = collections.namedtuple("Pair", "a b")


def tree():
    """Children that know their parent, as OmegaConf has them."""
    root = Plain()
    root.content = {}
    for name in ("model", "data"):
        child = Plain()
        child.parent, child.key, child.lr = root, name, [1, 2.5]
        root.content[name] = child
    return root


def kinds():
    nan = struct.unpack(">d", bytes.fromhex("7ff8000000000001"))[0]
    me = argparse.Namespace(lr=1e-3)
    me.me, me.list = me, [me, {"me": me}]
    slots = Slots()
    slots.left, slots.right = [1], None
    own = OwnDict(a=1)
    own.note = "x"
    shared = [1, 2]
    with_attributes = collections.OrderedDict(b=1, a=2)
    with_attributes._metadata = collections.OrderedDict(v=1)
    channels = torch.quantize_per_channel(torch.randn(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.qint8)
    return [None, True, False, 0, 1, -1, 2**63 - 1, 2**63, -(2**80), 1.0, 0.0, -0.0, float("inf"), float("nan"), nan, 1e-300, 1 + 2j, complex(-0.0, 1),
            "", "a", "a" * 100, "ä€\U0001F600", "\ud800", b"", b"\x00\xff", b"x" * 70, bytearray(b"x"), [], (), [1], (1,), [1, [2, (3,)]], set(),
            {1, "a", (2, 3)}, frozenset(), frozenset({1, 2.5}), {}, {"a": 1, 1: "b", (1, 2): None}, collections.OrderedDict(b=1, a=2),
            with_attributes, collections.Counter("abca"), collections.defaultdict(list, a=[1]), collections.defaultdict(None, a=1),
            torch.Size([2, 3]), torch.Size([]), torch.bfloat16, torch.device("cpu"), torch.arange(6).view(2, 3), torch.randn(3, 4).t(), torch.zeros(0, 3),
            torch.tensor(3.5), torch.nn.Parameter(torch.ones(2)), torch.complex(torch.ones(2), torch.ones(2)).conj(),
            torch.quantize_per_tensor(torch.randn(4), 0.1, 3, torch.quint8), channels,
            torch.UntypedStorage(b"abcd"), torch.arange(3.0).storage(), collections.deque([torch.ones(2), 1], maxlen=4), Pair(1, torch.ones(1)),
            Point(1, torch.ones(2)), Color.GREEN, slots, own, me, tree(), [shared, shared], argparse.Namespace(lr=1, steps=[1, 2]),
            datetime.datetime(2024, 2, 29, 1, 2, 3), datetime.timedelta(days=1), decimal.Decimal("1.50"), fractions.Fraction(1, 3), uuid.UUID(int=5),
            pathlib.PurePosixPath("/a/b"), range(1, 5), slice(1, 2, None), int, collections.OrderedDict, torch.nn.Linear(2, 2), torch.nn.ParameterDict({"a": torch.ones(2)}),
            numpy.float32(1.5), numpy.int64(3), numpy.arange(6).reshape(2, 3), numpy.arange(6.0).reshape(2, 3).T, numpy.array(["a", "bc"]), numpy.array([]),
            numpy.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]), numpy.datetime64("2024-01-01"), numpy.array([None, [1]], dtype=object),
            numpy.random.default_rng(3), numpy.array([1, 2], dtype=">i4"), numpy.longdouble(1.5)]


def random_value(rng, depth):
    leaves = [None, True, 1, 1.0, 0.0, -0.0, "x", b"x", bytearray(b"x"), torch.Size([1]), torch.float16, 2**70]
    if depth == 0 or rng.random() < 0.3:
        return copy.copy(rng.choice(leaves))
    items = [random_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    keys = rng.sample(["a", "b", 1, 2.5, (1, 2), None, "k" * 70], len(items))
    pairs = list(zip(keys, items))
    counts = {k: len(keys) for k in keys}
    return rng.choice([lambda: items, lambda: tuple(items), lambda: dict(pairs), lambda: collections.OrderedDict(pairs), lambda: set(keys), lambda: frozenset(keys),
                       lambda: collections.defaultdict(list, pairs), lambda: collections.Counter(counts), lambda: argparse.Namespace(v=items), lambda: collections.deque(items)])()


def hashed(path):
    report = json.loads(tool("ckpt-inspect", "hash", path, "--format", "json", "--strict"))
    return {v["name"]: v["sha256"] for v in report["values"] if v["kind"] == "value"}, report


if __name__ == "__main__":
    rng = random.Random(7)
    values = {f"k{i:03}": (v,) for i, v in enumerate(kinds())}
    values |= {f"r{i:03}": (random_value(rng, 4),) for i in range(200)}
    want = {k: sha(text(v)) for k, v in values.items()}
    with tempfile.TemporaryDirectory() as d:
        roots, paths = set(), {}
        for protocol in (2, 3, 4, 5):
            paths[protocol] = os.path.join(d, f"p{protocol}.pt")
            torch.save(values, paths[protocol], pickle_protocol=protocol)
            got, report = hashed(paths[protocol])
            bad = [k for k in want if got.get(k) != want[k]]
            if bad:
                raise SystemExit(f"protocol {protocol}: {len(bad)} of {len(want)} values have other digests, first {bad[0]}: {type(values[bad[0]][0])} {text(values[bad[0]])!r:.300}")
            roots.add(report["values_root"])
        if len(roots) != 1:
            raise SystemExit("protocols differ")
        # Between pickle formats everything stays; PyTorch loads it, and what it loads has the same text.
        once, twice = os.path.join(d, "dcp"), os.path.join(d, "again.pt")
        start = os.path.join(d, "start.pt")
        torch.save({k: v for k, v in values.items() if not (isinstance(v[0], torch.Tensor) and v[0].is_quantized)}, start)
        tool("ckpt-convert", start, once, "--to", "torch-dcp", "--verify")
        tool("ckpt-convert", once, twice, "--verify")
        tool("ckpt-inspect", "diff", start, twice)
        before, back = (torch.load(f, weights_only=False) for f in (start, twice))
        bad = [k for k in before if k not in back or text(back[k]) != text(before[k])]
        turned = [k for k in before if sha(text(before[k])) != want[k]]         # by numpy, which loads big-endian arrays as native ones
        if len(turned) != 1:
            raise SystemExit(f"PyTorch loads other values than it saved: {turned}")
        if bad:
            raise SystemExit(f"after two conversions {len(bad)} values are others: {[(k, type(back[k][0]), type(values[k][0])) for k in bad]}")
        tree_back = back[next(k for k, v in values.items() if isinstance(v[0], Plain))][0]
        if tree_back.content["data"].parent is not tree_back:
            raise SystemExit("a child has another parent")
    done(len(want), "values digested as PyTorch's own objects are, in 4 protocols and after 2 conversions")
