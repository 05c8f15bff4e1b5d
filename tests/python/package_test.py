"""Python's package against the commands and the samples' oracles: every sample tensor by tensor, slices against NumPy, reports,
errors, progress, Ctrl-C. The package's own examples run too."""
import doctest, hashlib, json, math, os, pathlib, random, shutil, signal, subprocess, sys, tempfile, threading, time, unittest
from support import BIN, SAMPLES, samples, tool
import numpy as np
import tessera
from tessera import _library, checkpoint, errors

DCP = SAMPLES / "dcp" / "fsdp2_w4" / "checkpoint"
FORMATS = ("dcp", "safetensors", "torchsave", "deepspeed", "fairscale", "megatron", "torchsnapshot", "hdf5")


def paths():
    """(path, expected.json) of the samples that the commands open at their folder, or at the one file in it."""
    for case, expected in samples(*FORMATS):
        inside = list((case / "checkpoint").iterdir())
        path = inside[0] if len(inside) == 1 and inside[0].is_file() else case / "checkpoint"
        if subprocess.run([BIN / "ckpt-inspect", "ls", path, "--format", "json"], capture_output=True).returncode == 0:
            yield path, expected


class Reading(unittest.TestCase):
    def test_samples_tensor_by_tensor(self):
        read = 0
        for path, expected in paths():
            with self.subTest(path=path), tessera.open(path) as c:
                want = {t["key"]: t for t in expected["tensors"]}
                listed = {t["name"]: t for t in json.loads(tool("ckpt-inspect", "ls", path, "--format", "json"))["tensors"]}
                self.assertEqual(list(c), list(listed))
                for name, tensor in c.items():
                    self.assertEqual((tensor.dtype, list(tensor.shape), tensor.kind),
                                     (listed[name]["dtype"], listed[name]["shape"], listed[name]["kind"]))
                    if name in want and "sha256" in want[name]:
                        self.assertEqual(hashlib.sha256(tensor.bytes()).hexdigest(), want[name]["sha256"], name)
                        read += 1
        self.assertGreater(read, 500)

    def test_slices_are_numpys(self):
        draw = random.Random(7)
        with tessera.open(DCP) as c:
            for _, tensor in c.items():
                if tensor.dtype not in checkpoint._NUMPY:
                    continue
                whole = tensor.numpy()
                for _ in range(12):
                    key = tuple(draw.choice([slice(None), slice(draw.randint(-9, 9), draw.randint(-9, 9), draw.choice([None, 1, 2, 3])),
                                             draw.randrange(-extent, extent)]) for extent in whole.shape[:draw.randint(0, whole.ndim)])
                    if draw.random() < 0.3:
                        key += (Ellipsis,)
                    part = tensor[key]
                    np.testing.assert_array_equal(part.numpy(), whole[key], str(key))
                    self.assertEqual(part.shape, whole[key].shape)
                    if part.ndim:  # a slice of a slice
                        np.testing.assert_array_equal(part[1:][::2].numpy(), whole[key][1:][::2])
            matrix = next(t for _, t in c.items() if t.ndim == 2)
            for bad, error in (((0, 0, 0), errors.OutOfRange), (10**6, errors.OutOfRange), (slice(None, None, -1), errors.InvalidArgument),
                               ("x", errors.InvalidArgument), (True, errors.InvalidArgument), ((Ellipsis, Ellipsis), errors.InvalidArgument)):
                with self.assertRaises(error):
                    matrix[bad]

    def test_a_mapping_needs_no_copy(self):
        with tempfile.TemporaryDirectory() as d:
            path = pathlib.Path(d) / "m.safetensors"
            tessera.convert(DCP, path)
            with tessera.open(path) as c:
                for _, tensor in c.items():
                    mapped = tensor.numpy(copy=False)
                    np.testing.assert_array_equal(mapped, tensor.numpy())
                    self.assertFalse(mapped.flags.writeable and mapped.size)
        with tessera.open(DCP) as c:
            sharded = next(name for name, t in c.items() if t.ndim == 2)
            with self.assertRaises(errors.Unsupported):
                c[sharded].numpy(copy=False)

    def test_a_zero_byte_ends_no_name(self):
        """Names pass through C, where it would: a tensor must not be read for another."""
        try:
            import torch
        except ImportError:
            self.skipTest("torch writes such names, and is not here")
        with tempfile.TemporaryDirectory() as d:
            path = pathlib.Path(d) / "m.pt"
            torch.save({"a": torch.tensor([1], dtype=torch.uint8), "a\0b": torch.tensor([2], dtype=torch.uint8)}, path)
            with self.assertRaisesRegex(errors.Unsupported, "zero byte"):
                tessera.open(path)
            with tessera.open(path, exclude=["a?b"]) as c:
                self.assertEqual(list(c), ["a"])
                self.assertEqual(c["a"].bytes(), b"\1")
                with self.assertRaises(errors.InvalidArgument):
                    c["a\0b"]
            with self.assertRaises(errors.InvalidArgument):
                tessera.open(f"{path}\0.pt")

    def test_types_that_numpy_lacks(self):
        with self.assertRaises(errors.Unsupported):
            checkpoint.numpy_dtype("uint4")
        try:
            import ml_dtypes
        except ImportError:
            with self.assertRaises(ImportError):
                checkpoint.numpy_dtype("bfloat16")
        else:
            self.assertEqual(checkpoint.numpy_dtype("bfloat16"), np.dtype(ml_dtypes.bfloat16))

    def test_values(self):
        tagged = {"b": [{"__int__": "9" * 30}], "c": {"__dict__": [[1, 2], [{"__tuple__": [3]}, None]]}, "d": {"__set__": [1, 2]},
                  "e": {"__bytes_hex__": "00ff"}, "f": {"__float__": "-inf"}, "g": {"__ordered_dict__": [["k", 1]], "attributes": None}}
        self.assertEqual(checkpoint.plain(tagged), {"b": [int("9" * 30)], "c": {1: 2, (3,): None}, "d": {1, 2}, "e": b"\0\xff",
                                                    "f": float("-inf"), "g": {"k": 1}})
        self.assertTrue(math.isnan(checkpoint.plain({"__float__": "nan:7ff8000000000001"})))
        with tessera.open(DCP) as c:
            listed = json.loads(tool("ckpt-inspect", "ls", DCP, "--format", "json"))["values"]
            self.assertEqual(set(c.values), set(listed))


class Reports(unittest.TestCase):
    def test_verbs_give_the_commands_documents(self):
        for verb, call in (("summary", tessera.summary), ("ls", tessera.ls), ("hash", tessera.hash), ("verify", tessera.verify),
                           ("scan", tessera.scan), ("stat", tessera.stat), ("optim", tessera.optim)):
            with self.subTest(verb=verb):
                document = json.loads(tool("ckpt-inspect", verb, DCP, "--format", "json"))
                report = call(str(DCP))
                self.assertEqual(report.document, document)
                for field, value in document.items():
                    if field not in ("schema",) and not isinstance(value, (list, dict)):
                        self.assertEqual(getattr(report, field), value)

    def test_every_field_of_every_schema(self):
        """A report has the fields that its schema has: no document loses one."""
        for name in ("summary", "ls", "hash", "verify", "scan", "stat", "optim", "diff", "convert", "plan", "audit", "trend"):
            schema = json.loads((SAMPLES.parent / "docs" / "json" / f"{name}.schema.json").read_text())
            report = getattr(tessera, name.capitalize() + "Report")
            fields = {field.rstrip("_") for field in report.__dataclass_fields__}
            self.assertEqual(fields, set(schema["properties"]) - {"schema"}, name)

    def test_hash_is_of_the_content(self):
        with tempfile.TemporaryDirectory() as d:
            tessera.reshard(DCP, d + "/w3", world_size=3)
            self.assertEqual(tessera.hash(DCP), tessera.hash(d + "/w3"))
            self.assertTrue(tessera.diff(DCP, d + "/w3").equal)
            tessera.convert(DCP, d + "/m.safetensors", only="model")
            self.assertNotEqual(tessera.hash(DCP), tessera.hash(d + "/m.safetensors"))
            plan = tessera.convert(DCP, d + "/no", to="safetensors", dry_run=True)
            self.assertIsInstance(plan, tessera.PlanReport)
            self.assertFalse(os.path.exists(d + "/no"))
            with self.assertRaises(tessera.AlreadyExists):
                tessera.convert(DCP, d + "/m.safetensors")

    def test_a_page(self):
        with tempfile.TemporaryDirectory() as d:
            page = tessera.report(DCP, output=d + "/page.html", stats=True)
            self.assertEqual(page.bytes, os.path.getsize(d + "/page.html"))
            with self.assertRaises(tessera.AlreadyExists):
                tessera.report(DCP, output=d + "/page.html")
            with open(d + "/page.html", encoding="utf-8") as file:
                self.assertEqual(tessera.report(DCP, output="-", stats=True).page, file.read())
            picture = tessera.report(DCP, output="-", svg="modules")
            self.assertTrue(picture.page.startswith("<svg"))
            self.assertIsNone(page.page)
            diff = tessera.diff(DCP, DCP, html=d + "/diff.html")
            self.assertTrue(diff.equal and os.path.getsize(d + "/diff.html") > 1000)

    def test_a_run_over_time(self):
        with tempfile.TemporaryDirectory() as d:
            for step in (1, 2):
                tessera.reshard(DCP, f"{d}/step_{step}", world_size=2)
            report = tessera.audit(d, deep=True, cache=d + "/.cache")
            self.assertFalse(report.ok)
            self.assertEqual([row.same_as for row in report.checkpoints], [None, "step_1"])
            self.assertEqual([note.code for note in report.findings][:1], ["AU010"])
            self.assertEqual(report.newest_sound, "step_1")
            points = tessera.trend(d, tensor="model.head.weight").points
            self.assertEqual([point.step for point in points], [1, 2])
            self.assertEqual(points[0].value, points[1].value)

    def test_a_negative_answer_is_a_report(self):
        with tempfile.TemporaryDirectory() as d:
            tessera.convert(DCP, d + "/m.safetensors")
            with open(d + "/m.safetensors", "r+b") as file:
                file.seek(-1, os.SEEK_END)
                last = file.read(1)[0]
                file.seek(-1, os.SEEK_END)
                file.write(bytes([last ^ 1]))
            with self.assertRaises(tessera.Corrupt):  # the seal says so
                tessera.diff(DCP, d + "/m.safetensors")
            for seal in pathlib.Path(d).glob("*tessera*.json"):
                seal.unlink()
            self.assertFalse(tessera.diff(DCP, d + "/m.safetensors").equal)
        dangerous = next(p for p in (SAMPLES / "hostile").rglob("*") if p.is_file() and
                         json.loads(subprocess.run([BIN / "ckpt-inspect", "scan", p, "--format", "json"], capture_output=True)
                                    .stdout.splitlines()[0])["verdict"] == "dangerous")
        self.assertEqual(tessera.scan(dangerous).verdict, "dangerous")

    def test_errors(self):
        for call, kind, code in ((lambda: tessera.open("/no/such"), tessera.NotFound, "not_found"),
                                 (lambda: tessera.hash(DCP, nonsense=1), tessera.InvalidArgument, "invalid_argument"),
                                 (lambda: tessera.open("https://x.org/m"), tessera.Unsupported, "unsupported"),
                                 (lambda: tessera.open(__file__), tessera.Unsupported, "unsupported")):
            with self.assertRaises(kind) as caught:
                call()
            self.assertEqual(caught.exception.code, code)
            self.assertTrue(caught.exception.message)
        with tessera.open(DCP) as c:
            with self.assertRaises(KeyError):
                c["no.such.tensor"]
            self.assertNotIn("no.such.tensor", c)
            tensor = c[c.keys()[0]]
        with self.assertRaises(tessera.InvalidArgument):
            tensor.numpy()


class LongCalls(unittest.TestCase):
    """On a checkpoint of 1 GiB of zeros that takes no disk."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = cls.folder.name + "/big.safetensors"
        header = json.dumps({"w": {"dtype": "F32", "shape": [1 << 28], "data_offsets": [0, 1 << 30]}}).encode()
        with open(cls.path, "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + (1 << 30))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_progress(self):
        with tempfile.TemporaryDirectory() as d:
            for name, call in (("hash", lambda **options: tessera.hash(self.path, **options)),
                               ("stat", lambda **options: tessera.stat(self.path, **options)),
                               ("diff", lambda **options: tessera.diff(self.path, self.path, **options)),
                               ("convert", lambda **options: tessera.convert(self.path, d + "/w.pt", **options))):
                seen = []
                call(progress=lambda done, total: seen.append((done, total)))
                with self.subTest(verb=name):
                    self.assertEqual(seen[-1][0], seen[-1][1])
                    self.assertIn(seen[-1][1], range(1 << 30, (1 << 30) + 4096))
                    self.assertEqual(seen, sorted(seen))
            seen = []
            tessera.verify(DCP, progress=lambda done, total: seen.append((done, total)))
            self.assertEqual(seen[-1][0], seen[-1][1])

        class Bar:  # tqdm's way
            made = None

            def __init__(self, total, unit, unit_scale):
                Bar.made, self.n, self.total, self.closed = self, 0, total, False

            def update(self, n):
                self.n += n

            def close(self):
                self.closed = True

        tessera.hash(self.path, progress=Bar)
        self.assertEqual((Bar.made.n, Bar.made.total, Bar.made.closed), (1 << 30, 1 << 30, True))

    def test_the_lock_is_released(self):
        ticks, over = [0], threading.Event()

        def count():
            while not over.is_set():
                ticks[0] += 1
                time.sleep(0.001)

        other = threading.Thread(target=count)
        other.start()
        tessera.hash(self.path, threads=1)
        over.set()
        other.join()
        self.assertGreater(ticks[0], 20)

    def test_what_a_callback_raises_stops_the_call(self):
        def fails(done, total):
            raise LookupError("enough")

        with self.assertRaisesRegex(LookupError, "enough"):
            tessera.hash(self.path, progress=fails, threads=1)

    def test_ctrl_c(self):
        code = f"import tessera; print('go', flush=True)\nwhile True: tessera.hash({self.path!r}, threads=1)"
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        child.stdout.readline()
        time.sleep(0.3)
        begin = time.monotonic()
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
        self.assertLess(time.monotonic() - begin, 20)
        self.assertIn(b"KeyboardInterrupt", err)


class Module(unittest.TestCase):
    def test_commands_of_an_installed_package(self):
        """As pip install --target DIR leaves it: DIR/tessera and DIR/bin. -W error: nothing but the command speaks."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(pathlib.Path(tessera.__file__).parent, f"{folder}/tessera")
            env = {**os.environ, "PYTHONPATH": folder, "TESSERA_LIBRARY": os.path.realpath(_library._path())}
            run = [sys.executable, "-W", "error", "-m", "tessera", "inspect", "--version"]
            absent = subprocess.run(run, env=env, capture_output=True, text=True)
            self.assertEqual(absent.returncode, 1)
            self.assertRegex(absent.stderr, r"\Atessera: the program tessera is not beside Python's scripts: it comes with the wheel\n\Z")
            os.mkdir(f"{folder}/bin")
            os.symlink(os.path.realpath(BIN / "tessera"), f"{folder}/bin/tessera")
            found = subprocess.run(run, env=env, capture_output=True, text=True)
            self.assertEqual((found.returncode, found.stderr), (0, ""))
            self.assertRegex(found.stdout, r"\Ackpt-inspect \d")


def load_tests(loader, tests, ignore):
    """The examples in the package's own words."""
    for module in (tessera, errors):
        tests.addTests(doctest.DocTestSuite(module, extraglobs={"sample": str(DCP)}))
    return tests


if __name__ == "__main__":
    unittest.main()
