"""Run under another PyTorch: what it writes (the samples' generators, made anew) reads as its own loader gives it."""
import json, pathlib, subprocess, sys, tempfile
from support import SAMPLES, compare_hashes, done, tool

import torch

OBJECTS = ("torchscript",)  # code: refused by name

n = 0
with tempfile.TemporaryDirectory() as folder:
    for script in ("dcp_cases.py", "torch_save_cases.py"):
        subprocess.run([sys.executable, script, folder], cwd=SAMPLES / "generate", check=True, stdout=subprocess.DEVNULL, timeout=900)
    for found in sorted(pathlib.Path(folder).glob("*/*/expected.json")):
        expected, checkpoint = json.loads(found.read_text()), found.parent / "checkpoint"
        files = [f for f in checkpoint.rglob("*") if f.is_file()]
        path = files[0] if len(files) == 1 else checkpoint
        if found.parent.name in OBJECTS:
            tool("ckpt-inspect", "hash", path, status=5)
            continue
        report = tool("ckpt-inspect", "hash", "--format", "json", path)
        compare_hashes(json.loads(report), expected, found.parent.name)
        n += 1
done(n, f"checkpoints that PyTorch {torch.__version__} wrote read as it reads them")
