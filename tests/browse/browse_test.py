"""`ckpt-inspect browse` on a pseudo-terminal, at 80x24 and at 120x40: keys, search, sort, pages, two checkpoints, resizing, hostile names; and
every way out leaves the terminal as it was. With a folder as argument: the screens, as text."""
import json, os, pathlib, signal, subprocess, sys, tempfile, time
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from terminal import Terminal

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TESSERA_BIN", ROOT / "build" / "bin"))
SAMPLES = ROOT / "sample_checkpoints"
DCP = SAMPLES / "dcp" / "fsdp2_w4" / "checkpoint"
SIZES = [(80, 24), (120, 40)]


def inspect(*words):
    return subprocess.run([BIN / "ckpt-inspect", *map(str, words)], capture_output=True, text=True)


def browse(*paths, width=80, height=24, environment=None):
    return Terminal([str(BIN / "ckpt-inspect"), "browse", *map(str, paths)], width, height, environment)


def safetensors(path, tensors):
    """(name, shape, value of every element)."""
    import struct
    header, data = {}, b""
    for name, shape, value in tensors:
        numel = 1
        for extent in shape:
            numel *= extent
        begin = len(data)
        data += struct.pack("<f", value) * numel
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def model(path, changed=0.0):
    safetensors(path, [("model.embed.weight", [20, 8], 1.0), *[(f"model.layers.{i}.{part}.weight", [8, 8], 0.5 + (changed if i == 7 and part == "k" else 0))
                                                              for i in range(12) for part in ("q", "k")], ("head.weight", [30, 8], 2.0)])


def walks(width, height, keep):
    """The tree, its search, sort and marks, and a tensor's page."""
    t = browse(DCP, width=width, height=height)
    try:
        t.expect("fsdp2_w4", "torch-dcp", "model", "optim", "? help")
        tree = inspect("ls", DCP, "--tree").stdout
        for line in tree.splitlines()[:-1]:
            if not line.startswith(" "):  # sizes of the modules at the top are those of ls --tree
                name, size = line.split()[0], " ".join(line.split()[1:3])
                t.expect(lambda lines, name=name, size=size: any(f"▸ {name}" in each and size in each for each in lines))
        keep("tree", t)
        t.type("/", "e", "m", "b", "e", "d", "Enter")
        t.expect(lambda lines: "embed.weight" in lines[-1])
        t.type("n").expect(lambda lines: "embed" not in lines[0])
        t.type("s").expect("by size")
        t.type("a").expect("by name")
        t.type("g", "m").expect("marked")
        t.type("M").expect("by name")
        t.type("/", "model.embed", "Enter")
        t.expect(lambda lines: "model.embed" in lines[-1])
        t.type("Enter").expect("[1 facts]", "float32", "[11, 6], 66 elements")
        keep("facts", t)
        stat = json.loads(inspect("stat", DCP, "--include", "model.embed.weight", "--format", "json").stdout)["tensors"][0]
        t.type("2").expect("bins", f"{stat['min']:.4g}"[:5])
        keep("histogram", t)
        value = json.loads(inspect("show", DCP, "model.embed.weight", "--slice", "10:11,0:1", "--format", "json").stdout)["values"][0]
        t.type("3").expect("rows 0-10 of 11", str(value)[:7])
        keep("values", t)
        t.type("4").expect("__0_0.distcp", "__3_0.distcp", "0000")  # the map and the table of pieces
        keep("pieces", t)
        t.type("5").expect("exp_avg_sq", "of the weight")
        keep("optimizer", t)
        t.type("Enter").expect("[1 facts]", lambda lines: "exp_avg" in lines[0])
        t.type("q").expect("[5 optimizer]")
        t.type("Esc").expect("by name")
        t.type("?").expect("The tree", "leave; Q from everywhere")
        keep("help", t)
        t.type("q").expect("by name")
        t.type("i").expect("AdamW")
        t.type("q").expect("by name")
        t.type("q")
        assert t.finish() == 0, t.exit
        t.is_as_before()
    finally:
        t.close()


def two_side_by_side(folder, width, height, keep):
    a, b = folder / "a.safetensors", folder / "b.safetensors"
    model(a), model(b, 0.25)
    t = browse(a, b, width=width, height=height)
    try:
        t.expect("a.safetensors", "b.safetensors", "head.weight")
        t.type("g", "=").expect("compared")
        t.type("G", "=").expect("1 in all differ")
        keep("two", t)
        t.type("g", "d").expect(lambda lines: "model.layers.7.k.weight" in lines[-1])
        t.type("Enter").expect("64 of 64 elements differ, at most by 0.25")
        t.type("3").expect("│", "0.5", "0.75")
        keep("two-values", t)
        t.type("q", "x").expect(lambda lines: not any("head.weight" in line for line in lines))
        t.type("Q")
        assert t.finish() == 0
        t.is_as_before()
    finally:
        t.close()


def resizes(folder):
    model(folder / "m.safetensors")
    t = browse(folder / "m.safetensors")
    try:
        t.expect("head.weight")
        for width, height in [(120, 40), (50, 10), (39, 7), (1, 1), (200, 60), (80, 24)]:
            t.resize(width, height)
            if width >= 40:
                t.expect("head.weight", lambda lines, height=height: "by name" in lines[height - 1])
            elif width > 20:
                t.expect("too small")
        t.type("G", "e", "G")
        t.expect(lambda lines: "k.weight" in lines[-1] or "q.weight" in lines[-1])
        t.type("q")
        assert t.finish() == 0
        t.is_as_before()
    finally:
        t.close()


def ends_by_signals(folder):
    model(folder / "m.safetensors")
    for name, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143), ("C-c", 130), (signal.SIGHUP, None)):
        t = browse(folder / "m.safetensors")
        try:
            t.expect("head.weight")
            t.type("e", "Enter")
            if isinstance(name, str):
                t.type(name)
            else:
                os.kill(t.pid, name)
            exit = t.finish()
            assert exit == (status if status is not None else -name), (name, exit)
            t.is_as_before()
        finally:
            t.close()


def stops_and_goes_on(folder):
    """Ctrl-Z gives the terminal back; fg draws again."""
    model(folder / "m.safetensors")
    t = browse(folder / "m.safetensors")
    try:
        t.expect("head.weight")
        t.type("C-z")
        t.wait_until_stopped()
        t.is_as_before()
        os.kill(t.pid, signal.SIGCONT)
        t.expect("head.weight")
        t.type("q")
        assert t.finish() == 0
        t.is_as_before()
    finally:
        t.close()


def hostile(folder):
    """Names that would drive a terminal; its emulation refuses every control character."""
    bad = ["\x1b[2J\x1b]0;owned\x07.w", "a\nb.w", "\x9b31m.w", "\u202eevil.w", "名前.重み", "x" * 500 + ".w", "", "..", "e\u0301.w", "\ud7ff.w"]
    path = folder / "hostile\x1b[31m.safetensors"
    safetensors(path, [(name, [2], 1.0) for name in bad])
    for width, height in SIZES:
        t = browse(path, width=width, height=height)
        try:
            t.expect("by name")
            t.type("/", "w", "Enter")
            for _ in range(sum(name.endswith(".w") for name in bad)):
                t.type("Enter").expect("[1 facts]")
                t.type("2").expect("largest magnitude")
                t.type("3").expect("elements 0-1 of 2")
                t.type("4").expect("place")
                t.type("5").expect("No optimizer here")
                t.type("q").expect("by name")
                t.type("n")
            t.type("i")
            t.expect("summary")
            t.type("Q")
            assert t.finish() == 0
            assert t.screen.title is None
            t.is_as_before()
        finally:
            t.close()


def says_what_it_needs():
    plain = subprocess.run([BIN / "ckpt-inspect", "browse", DCP], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert plain.returncode == 2 and plain.stdout == "" and "needs a terminal" in plain.stderr, plain
    json_too = subprocess.run([BIN / "ckpt-inspect", "browse", DCP, "--format", "json"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert json_too.returncode == 2 and "browse is for people" in json_too.stderr, json_too
    t = browse(DCP, environment={"TERM": "dumb"})
    try:
        assert t.finish() == 2
        assert "TERM is unset or dumb" in t.output, t.output
    finally:
        t.close()
    t = browse(DCP / "nothing")
    try:
        assert t.finish() == 3
        assert "\x1b[?1049h" not in t.output
    finally:
        t.close()


def marks_are_printed(folder):
    model(folder / "m.safetensors")
    t = browse(folder / "m.safetensors")
    try:
        t.expect("head.weight")
        t.type("/", "layers", "Enter", "Enter")
        t.expect(lambda lines: any("[0-11]" in line for line in lines))
        t.type("/", "3", "Enter", "m", "q")
        assert t.finish() == 0
        t.is_as_before(t.before[:1] + ["model.layers.3.k.weight", "model.layers.3.q.weight"] + t.before[3:])
    finally:
        t.close()


def rests(folder):
    """Nothing to do costs nothing."""
    model(folder / "m.safetensors")
    t = browse(folder / "m.safetensors")
    try:
        t.expect("head.weight")
        time.sleep(0.5)
        before = sum(map(int, pathlib.Path(f"/proc/{t.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
        time.sleep(2)
        after = sum(map(int, pathlib.Path(f"/proc/{t.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
        assert after - before <= 2, f"{after - before} ticks in two seconds"
        t.type("q")
        assert t.finish() == 0
    finally:
        t.close()


def memory_is_bounded(folder):
    """Numbers of 384 MiB under a limit of 16 MiB; 60,000 tensors, searched to the last."""
    large = folder / "large.safetensors"
    numel = 96 << 20
    header = json.dumps({"w": {"dtype": "F32", "shape": [numel], "data_offsets": [0, 4 * numel]}}).encode()
    with open(large, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 4 * numel)
    t = browse("--mem-limit", "16MiB", large)
    try:
        t.expect("384 MiB")
        t.type("Enter").expect("[1 facts]")
        t.type("2").expect("The tensor has 384 MiB: r reads it.")
        t.type("r").expect("100,663,296 zeros (100.0 %)", seconds=120)
        t.type("3", "G").expect(f"of {numel}", f"-{numel - 1} of")
        kib = int(next(line.split()[1] for line in pathlib.Path(f"/proc/{t.pid}/status").read_text().splitlines() if line.startswith("VmHWM")))
        assert kib < 64 << 10, f"{kib >> 10} MiB at its peak"
        t.type("Q")
        assert t.finish() == 0
    finally:
        t.close()
    many = folder / "many.safetensors"
    safetensors(many, [(f"m.block{i % 50}.layers.{i // 50}.{part}", [2], 1.0) for i in range(20000) for part in ("q", "k", "v")])
    begin = time.monotonic()
    t = browse(many)
    try:
        t.expect("60,000 tensors")
        shown = time.monotonic() - begin
        begin = time.monotonic()
        t.type("/", "nothing of that name", "Enter").expect("no name here holds")
        searched = time.monotonic() - begin
        t.type("e").expect("1 of 80101")
        t.type("/", "block49.layers.399.v", "Enter").expect(lambda lines: "m.block49.layers.399.v" in lines[-1])
        print(f"60,000 tensors: shown after {shown:.2f} s, {searched:.2f} s to search all names")
        assert shown < 20 and searched < 20, (shown, searched)  # one second each on a machine that does nothing else
        t.type("Q")
        assert t.finish() == 0
    finally:
        t.close()


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else None

    def keep(name, terminal):
        if out:
            out.mkdir(parents=True, exist_ok=True)
            (out / f"{name}-{terminal.screen.width}.txt").write_text(terminal.screen.text() + "\n")

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        says_what_it_needs()
        for width, height in SIZES:
            walks(width, height, keep)
            two_side_by_side(folder, width, height, keep)
        resizes(folder)
        ends_by_signals(folder)
        stops_and_goes_on(folder)
        marks_are_printed(folder)
        hostile(folder)
        memory_is_bounded(folder)
        rests(folder)
    print("the browser walks, compares, resizes and leaves the terminal as it was")


if __name__ == "__main__":
    main()
