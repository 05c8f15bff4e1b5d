"""Runs every command line that README.md, docs/recipes.md and docs/json/README.md show ("    $ ...") in a fresh folder beside the samples.
A line may end in "# exit N"; one that sets a variable does so for the lines below it. Lines that need a program which is not here (jq)
are named."""
import os, pathlib, re, shutil, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TESSERA_BIN", ROOT / "build" / "bin")).resolve()


def main():
    ran = 0
    for page in ("README.md", "docs/recipes.md", "docs/json/README.md"):
        variables = {}
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            os.symlink(ROOT / "sample_checkpoints", folder / "sample_checkpoints")
            for line in re.findall(r"^    \$ (.*)$", (ROOT / page).read_text(), re.M):
                command, _, note = line.partition("    # exit ")
                if setting := re.fullmatch(r"(\w+)=(\S+)", command):
                    variables[setting[1]] = setting[2]
                    continue
                if "jq" in command and not shutil.which("jq"):
                    print(f"not run, jq is not installed: {command}")
                    command = command.split("|")[0]
                done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=folder, capture_output=True, text=True, timeout=60,
                                      env={"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": name, **variables})
                if done.returncode != int(note or 0):
                    sys.exit(f"{page}: {line}\nexit {done.returncode}\n{done.stdout[-500:]}\n{done.stderr[-1500:]}")
                ran += 1
    assert ran > 45, ran
    print(f"{ran} examples ran")


if __name__ == "__main__":
    main()
