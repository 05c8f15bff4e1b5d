"""Writes verdicts.tsv: what picklescan and modelscan say of a call of each name.

    pip install picklescan==1.0.5 modelscan==0.8.8; python make_verdicts.py > verdicts.tsv

Names: every entry of the two tools' own tables ("*" as one made-up name), and calls that were found to pass other
scanners. Each is called by REDUCE in protocol 0 and 4, and by INST; a tool flags a name if it flags one of the three.
Nothing is unpickled.
"""
import importlib.metadata
import logging
import os
import sys
import tempfile

from modelscan.modelscan import ModelScan
from modelscan.settings import DEFAULT_SETTINGS
from picklescan.scanner import _unsafe_globals, scan_file_path

MORE = """pty.spawn timeit.timeit functools.partial operator.attrgetter torch.hub.load torch.load marshal.loads io.open
asyncio.create_subprocess_shell distutils.spawn.spawn torch.utils.cpp_extension.load_inline json.loads joblib.load
numpy.load pandas.read_pickle linecache.getlines zipfile.ZipFile smtplib.SMTP ftplib.FTP codecs.open glob.glob
argparse.Namespace collections.OrderedDict collections.deque datetime.datetime decimal.Decimal fractions.Fraction
uuid.UUID types.SimpleNamespace torch._utils._rebuild_tensor_v2 numpy.dtype omegaconf.dictconfig.DictConfig""".split()


def names():
    tables = [_unsafe_globals] + list(DEFAULT_SETTINGS["unsafe_globals"].values())
    for table in tables:
        for module, entries in table.items():
            entries = [entries] if isinstance(entries, str) else entries
            for name in entries:
                yield module, "anything" if name == "*" else name
    for full in MORE:
        yield tuple(full.rsplit(".", 1))


def pickles(module, name):
    m, n = module.encode(), name.encode()
    yield b"c" + m + b"\n" + n + b"\n(S'x'\ntR."
    yield b"(S'x'\ni" + m + b"\n" + n + b"\n."
    text = lambda t: b"\x8c" + bytes([len(t)]) + t
    yield b"\x80\x04" + text(m) + text(n) + b"\x93" + text(b"x") + b"\x85R."


def main():
    logging.disable(logging.CRITICAL)
    versions = [f"{tool} {importlib.metadata.version(tool)}" for tool in ("picklescan", "modelscan")]
    print("# " + ", ".join(versions) + ", by make_verdicts.py\n# module\tname\tpicklescan\tmodelscan")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.pkl")
        for module, name in sorted(set(names())):
            pickle_flag = model_flag = 0
            for data in pickles(module, name):
                with open(path, "wb") as file:
                    file.write(data)
                pickle_flag |= scan_file_path(path).issues_count > 0
                scan = ModelScan()
                scan.scan(path)
                model_flag |= len(scan.issues.all_issues) > 0
            print(module, name, int(pickle_flag), int(model_flag), sep="\t")


main()
