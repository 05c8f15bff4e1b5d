#!/usr/bin/env python3
"""Lays the pinned sources out below DEST: third_party's own, and those of requirements.txt, fetched by pip and held against their
hashes. Does nothing where they lie there already.   fetch.py DEST"""
import hashlib
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent


def pinned():
    """(name, version, sha256) of each line of requirements.txt."""
    for line in (HERE / "requirements.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            requirement, checksum = line.split(" --hash=sha256:")
            yield *requirement.split("=="), checksum


def download(name, version, checksum, folder):
    """The file of that release whose SHA-256 is pinned: a source archive, or a wheel where there is no other."""
    # A source archive's metadata takes its build tools, which pip takes as wheels: of it alone no binary is wanted.
    for form in (["--no-binary", name], ["--only-binary", ":all:"]):
        place = folder / form[0].strip("-")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", str(place), *form,
                   f"{name}=={version}"]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        for file in sorted(place.glob("*")) if place.is_dir() else []:
            if hashlib.sha256(file.read_bytes()).hexdigest() == checksum:
                return file
    sys.exit(f"fetch.py: {name} {version} with SHA-256 {checksum} could not be fetched through pip")


def unpack(archive, wanted, dest):
    """Writes the members whose names match `wanted` ({part after the first folder or '': target}) below DEST."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as source:
            members = [(m, lambda m=m: source.read(m)) for m in source.namelist() if not m.endswith("/")]
            place(members, wanted, dest, strip=0)
    else:
        with tarfile.open(archive) as source:
            members = [(m.name, lambda m=m: source.extractfile(m).read()) for m in source if m.isfile()]
            place(members, wanted, dest, strip=1)


def place(members, wanted, dest, strip):
    for name, read in members:
        parts = pathlib.PurePosixPath(name).parts[strip:]
        if ".." in parts or not parts:
            continue
        inner = "/".join(parts)
        for prefix, target in wanted.items():
            if inner == prefix or inner.startswith(prefix + "/"):
                file = dest / target / inner[len(prefix):].lstrip("/") if inner != prefix else dest / target
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(read())


def main():
    dest = pathlib.Path(sys.argv[1]).resolve()
    stamp = "\n".join(["2", *((HERE / "requirements.txt").read_text(), str(sorted(p.name for p in HERE.iterdir())))])
    if (dest / ".complete").is_file() and (dest / ".complete").read_text() == stamp:
        return
    shutil.rmtree(dest, ignore_errors=True)
    dest.mkdir(parents=True)
    inside = {
        "zstandard": {"zstd": "zstd", "zstd/LICENSE": "licenses/zstd.txt"},
        "zlib-ng": {"src/zlib_ng/zlib-ng": "zlib-ng", "src/zlib_ng/zlib-ng/LICENSE.md": "licenses/zlib-ng.md"},
        "nlohmann-json": {"nlohmann_json/include/nlohmann": "nlohmann/include/nlohmann",
                          "nlohmann_json-3.12.0.dist-info/licenses": "licenses/nlohmann_json"},
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, version, checksum in pinned():
            unpack(download(name, version, checksum, pathlib.Path(folder)), inside[name], dest)
    for library, licence in (("fmt-9.1.0", "LICENSE.rst"), ("CLI11-2.1.2", "LICENSE")):
        shutil.copytree(HERE / library, dest / library.split("-")[0])
        shutil.copy(HERE / library / licence, dest / "licenses" / f"{library.split('-')[0]}.txt")
    hdf5 = HERE / "hdf5-1.10.8.tar.xz"
    with tarfile.open(hdf5) as source:
        tops = {pathlib.PurePosixPath(m.name).parts[1] for m in source if m.isfile()}
    unpack(hdf5, {top: f"hdf5/{top}" for top in tops}, dest)
    shutil.copy(dest / "hdf5/COPYING", dest / "licenses/hdf5.txt")
    (dest / ".complete").write_text(stamp)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main()
