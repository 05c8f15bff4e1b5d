"""`ckpt-inspect audit --html` in a real browser: no error, no request, the page's numbers are those of the document, checkpoints open by mouse and
by keyboard, lines follow measure, layer and scale, hostile names do nothing. With a folder as argument: pictures, too."""
import array, json, math, os, pathlib, random, re, subprocess, sys, tempfile
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from browser import Browser, missing, nothing_is_asked_for

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TESSERA_BIN", ROOT / "build" / "bin"))
STEPS = (10, 20, 30, 40, 50)
HOSTILE = "</script><script>window.hacked=1</script>.0.weight", "<img src=x onerror=window.hacked=2>.weight", "\u202eevil.\u2028.weight", "__proto__.weight"


def inspect(*words):
    done = subprocess.run([BIN / "ckpt-inspect", *map(str, words)], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def save(path, tensors):
    header, data = {}, b""
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": [8, len(values) // 8], "data_offsets": [len(data), len(data) + 4 * len(values)]}
        data += array.array("f", values).tobytes()
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def save_run(folder, hostile=False):
    """Layers that drift apart, of which one meets NaN at step 40."""
    dice = random.Random(3)
    names = [f"model.layers.{layer}.{module}.weight" for layer in range(6) for module in ("attn", "mlp")] + ["model.embed.weight"]
    if hostile:
        names += HOSTILE
    weights = {name: [dice.gauss(0, 1) for _ in range(512)] for name in names}
    for step in STEPS:
        for at, name in enumerate(names):
            weights[name] = [x * (1 + 0.01 * at) + dice.gauss(0, 0.02) for x in weights[name]]
        saved = dict(weights)
        if step >= 40:
            saved["model.layers.2.mlp.weight"] = [math.nan] + saved["model.layers.2.mlp.weight"][1:]
        save(folder / f"step-{step}{'<b>&' if hostile else ''}" / "model.safetensors", saved)
    (folder / "latest").write_text("step-50" + ("<b>&" if hostile else ""))
    return names


def page_data(path):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', pathlib.Path(path).read_text(), re.S)[1])


def values_are_those_of_the_document(browser, run, page):
    document = json.loads(inspect("audit", run, "--deep", "--html", page, "--format", "json"))
    assert page_data(page)["audit"] == document
    assert document["newest_sound"] == "step-30" and not document["ok"]
    browser.open(page)
    assert browser.errors() == []
    assert "step-30" in browser.text("#overview") and "1 error" in browser.text("#overview")
    shown = browser.run("return [...document.querySelectorAll('#overview .finding')].map((each) => each.dataset.code)")
    assert sorted(shown) == sorted(note["code"] for note in document["findings"]), shown
    browser.click("#tab-checkpoints")
    rows = browser.run("return [...document.querySelectorAll('#checkpoint-table tbody tr')].map((row) => [row.dataset.name, row.cells[1].textContent, row.cells[6].textContent])")
    assert rows == [[row["name"], f"{row['step']:g}", "sound" if row["sound"] else "unsound"] for row in document["checkpoints"]], rows
    browser.click("#checkpoint-table tbody tr")
    assert "step-10" in browser.text("#detail") and browser.run("return document.activeElement.id") == "detail"
    browser.run("document.querySelector('#checkpoint-table tbody tr').focus()")
    browser.keys("Down", "Down", "Down", "Enter")
    assert "step-40" in browser.text("#detail") and "AU040" in browser.text("#detail")
    browser.run("document.getElementById('tab-checkpoints').focus()")
    browser.keys("Right")
    assert browser.run("return document.querySelector('#lines').hidden") is False
    assert browser.run("return [...document.querySelectorAll('#lines [aria-pressed=true]')].map((each) => each.textContent)") == ["norm"]
    return document


def lines_are_those_of_the_document(browser, document):
    points = "return [...document.querySelectorAll('#picture g[data-layer]')].map((g) => [g.dataset.layer, [...g.querySelectorAll('circle')].map((c) => Number(c.dataset.value))])"
    for measure in ("norm", "update"):
        browser.click(f"#measure-{measure}")
        assert browser.run("return document.activeElement.id") == f"measure-{measure}"
        shown = dict(browser.run(points))
        for layer in document["layers"]:
            assert shown[layer["name"]] == [v for v in layer[measure] if isinstance(v, (int, float))], (measure, layer["name"])
    browser.click("#log")
    browser.run("const s = document.getElementById('layer'); s.value = 'model.layers.3'; s.dispatchEvent(new Event('change'))")
    assert list(dict(browser.run(points))) == ["model.layers.3"]
    assert browser.run("return document.querySelectorAll('#layer-table tbody tr').length") == 1
    browser.click("#measure-v_max")
    assert "No checkpoint" in browser.text("#picture")
    assert browser.errors() == [], browser.errors()


def hostile_names(browser, folder):
    run, page = folder / "<script>window.hacked=3</script>", folder / "hostile.html"
    names = save_run(run, hostile=True)
    document = json.loads(inspect("audit", run, "--deep", "--html", page, "--format", "json"))
    assert len(document["checkpoints"]) == len(STEPS) and len(names) == 17
    browser.open(page)
    for tab in browser.run("return [...document.querySelectorAll('[role=tab]')].map((tab) => tab.id)"):
        browser.click("#" + tab)
    browser.run("document.querySelectorAll('#checkpoint-table tbody tr').forEach((row) => row.click())")
    assert browser.run("return [typeof window.hacked, document.images.length, document.scripts.length, ({}).weight]") == ["undefined", 0, 3, None]
    assert browser.errors() == [], browser.errors()
    return page


def pictures(page, out):
    out.mkdir(parents=True, exist_ok=True)
    for dark in (False, True):
        browser = Browser(dark=dark)
        try:
            browser.open(page)
            for tab in ("overview", "checkpoints", "lines"):
                browser.click(f"#tab-{tab}")
                browser.screenshot(out / f"audit-{tab}{'-dark' if dark else ''}.png")
        finally:
            browser.close()


def main():
    if (program := missing()) is not None:
        print(f"skipped: {program} is not installed")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run, page = folder / "run", folder / "page.html"
        save_run(run)
        browser = Browser()
        try:
            document = values_are_those_of_the_document(browser, run, page)
            lines_are_those_of_the_document(browser, document)
            nothing_is_asked_for(browser, [page, hostile_names(browser, folder)])
        finally:
            browser.close()
        if len(sys.argv) > 1:
            pictures(page, pathlib.Path(sys.argv[1]))
    print("the page of an audit shows what its document says, by mouse and by keyboard")


if __name__ == "__main__":
    main()
