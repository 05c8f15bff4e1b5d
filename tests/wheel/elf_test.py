"""What packaging/elf.py reads of programs and libraries, against readelf; what the wheel must not take is refused."""
import os, pathlib, re, subprocess, sys, unittest
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packaging"))
import elf

BIN = pathlib.Path(os.environ["TESSERA_BIN"])
FILES = [BIN / "tessera", BIN / "libtessera.so", pathlib.Path(sys.executable).resolve(), pathlib.Path("/bin/sh").resolve()]


def readelf(flags, path):
    return subprocess.run(["readelf", "-W", flags, path], capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}).stdout


class Reading(unittest.TestCase):
    def test_as_readelf_does(self):
        for path in FILES:
            with self.subTest(path=path):
                file = elf.Elf(path)
                self.assertEqual(file.needed, re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", path)))
                wanted = re.findall(r"Name: (\S+)  Flags", readelf("-V", path).partition(".gnu.version_r")[2])
                self.assertEqual(sorted(file.versions), sorted(wanted))
                interpreter = re.findall(r"program interpreter: (.*)\]", readelf("-l", path))
                self.assertEqual([file.interpreter] if file.interpreter else [], interpreter)
        self.assertTrue(any(elf.Elf(path).versions for path in FILES))

    def test_what_the_wheel_refuses(self):
        library = BIN / "libtessera.so"
        with self.assertRaisesRegex(SystemExit, "asks for the interpreter"):
            elf.require_static(BIN / "tessera")
        with self.assertRaisesRegex(SystemExit, "needs the shared libraries .*lib"):
            elf.require_library(library, elf.GLIBC, newest=(2, 17))
        every = set(elf.Elf(library).needed)
        with self.assertRaisesRegex(SystemExit, r"needs \w+_\d"):  # a compiler's own library, or a glibc that is too new
            elf.require_library(library, every, newest=(2, 17))
        with self.assertRaisesRegex(SystemExit, "no 64-bit ELF"):
            elf.Elf(ROOT / "README.md")


unittest.main()
