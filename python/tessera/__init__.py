"""Tessera: sharded training checkpoints of any framework, without that framework.

>>> import tessera
>>> c = tessera.open(sample)
>>> c.format, c.world_size, len(c)
('torch-dcp', 4, 54)
>>> c.optim, c.values["optim.param_groups.0.lr"]
(['optim'], 0.01)
>>> w = c["model.layers.0.up.weight"]
>>> w.dtype, w.shape
('float32', (10, 6))
>>> w[0:2, 1:3].numpy().shape                      # reads what the slice needs, whatever the sharding
(2, 2)
>>> tessera.verify(sample).ok
True
>>> tessera.hash(sample) == tessera.hash(sample)   # of the content, not of the files
True

Functions take the flags of the commands under their own names, with `_` for `-`: `ckpt-convert SRC DST --to safetensors
--dtype bf16` is `tessera.convert(SRC, DST, to="safetensors", dtype="bf16")`; a flag without a value is `True`, one that is
given several times a list. Long calls release the interpreter's lock, take `progress=` (a function of bytes done and in
all, or `tqdm`) and stop at Ctrl-C.
"""

from . import _library
from .checkpoint import Checkpoint, Tensor, open
from .errors import (AlreadyExists, Cancelled, Corrupt, Error, Internal, InvalidArgument, IoError, NotFound, OutOfRange,
                     ResourceExhausted, Timeout, UnknownTensor, Unsupported)
from .reports import (AuditReport, ConvertReport, DiffReport, HashReport, LsReport, OptimReport, PageReport, PlanReport, RunReport, ScanReport,
                      StatReport, SummaryReport, TrendReport, VerifyReport, read_report)

__version__ = _library.lib.tessera_version().decode()

__all__ = ["AlreadyExists", "AuditReport", "Cancelled", "Checkpoint", "ConvertReport", "Corrupt", "DiffReport", "Error", "HashReport",
           "Internal", "InvalidArgument", "IoError", "LsReport", "NotFound", "OptimReport", "OutOfRange", "PageReport", "PlanReport",
           "ResourceExhausted", "RunReport", "ScanReport", "StatReport", "SummaryReport", "Tensor", "Timeout", "TrendReport",
           "UnknownTensor", "Unsupported", "VerifyReport", "audit", "convert", "diff", "hash", "ls", "open", "optim", "report", "reshard",
           "scan", "stat", "summary", "trend", "verify"]


def _words(flags):
    out = []
    for name, value in flags.items():
        flag = "--" + name.rstrip("_").replace("_", "-")
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if each is None or each is False:
                continue
            out.append(flag)
            if each is not True:
                out.append(str(each))
    return out


def _report(verb, paths, progress, flags):
    document, _ = _library.run([verb, *_words(flags), "--", *paths], progress)
    return read_report(document)


def summary(path, **flags):
    """What a checkpoint is: SummaryReport; of a run's folder with several: RunReport."""
    return _report("summary", [path], None, flags)


def ls(path, **flags):
    """Every tensor and value: LsReport."""
    return _report("ls", [path], None, flags)


def stat(path, *, progress=None, **flags):
    """Statistics of every tensor's values: StatReport."""
    return _report("stat", [path], progress, flags)


def optim(path, other=None, *, progress=None, **flags):
    """The optimizer's state and its defects, and against `other` its growth: OptimReport."""
    return _report("optim", [path] if other is None else [path, other], progress, flags)


def hash(path, *, progress=None, **flags):
    """The content as SHA-256, whatever the sharding and the format: HashReport. Two are equal where the content is."""
    return _report("hash", [path], progress, flags)


def diff(a, b, *, progress=None, **flags):
    """Where two checkpoints differ: DiffReport, whose `equal` is the answer."""
    return _report("diff", [a, b], progress, flags)


def verify(*paths, progress=None, **flags):
    """Whether checkpoints are whole and sound: VerifyReport, whose `ok` is the answer; of several, with `checkpoints`."""
    return _report("verify", list(paths), progress, flags)


def scan(*paths, **flags):
    """What opening the files below the paths could run: ScanReport, whose `verdict` is "safe", "unknown" or
    "dangerous"."""
    return _report("scan", list(paths), None, flags)


def report(path, other=None, *, output, progress=None, **flags):
    """Writes a page to look at, an HTML file, of one checkpoint or of two compared: PageReport."""
    return _report("report", [path] if other is None else [path, other], progress, {"output": output, **flags})


def audit(run, *, progress=None, **flags):
    """A run's checkpoints over time: AuditReport, whose `ok` is the answer; with `deep=True` their values, too."""
    return _report("audit", [run], progress, flags)


def trend(run, *, tensor, progress=None, **flags):
    """One number of the tensors that match the glob `tensor` (or a list), over a run: TrendReport."""
    return _report("trend", [run], progress, {"tensor": tensor, **flags})


def convert(src, dst, *, progress=None, **flags):
    """Writes `src` in another format: ConvertReport; with `dry_run=True` PlanReport."""
    return _report("convert", [src, dst], progress, flags)


def reshard(src, dst, *, progress=None, **flags):
    """Writes `src` for another number of ranks: ConvertReport; with `dry_run=True` PlanReport."""
    return _report("reshard", [src, dst], progress, flags)
