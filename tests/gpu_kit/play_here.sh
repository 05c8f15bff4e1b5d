#!/usr/bin/env bash
# play_here.sh KIT FOLDER : starts the program that travels here, without a GPU, and plays one group of cases on the CPU.
# LibTorch is that of FOLDER; what it loads of CUDA's libraries is stood in for by empty functions, which nothing calls.
set -euo pipefail
kit=$1 folder=$2
libtorch=$folder/libtorch/torch/lib stand_ins=$folder/stand-ins
cudart=$(find -L /usr/local/cuda/lib64 -name 'libcudart.so.1[0-9]' | head -1)

rm -rf "$stand_ins" && mkdir -p "$stand_ins"
cp -L "$cudart" "$stand_ins/"  # registers device code as libraries are loaded
python3 - "$libtorch" "$stand_ins" "$cudart" <<'PYTHON'
import glob, re, subprocess, sys
libtorch, stand_ins, cudart = sys.argv[1:]
def lines(*command): return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
ours = glob.glob(libtorch + "/*.so")
known = {line.split()[-1].split("@")[0] for library in ours + [cudart] for line in lines("nm", "-D", "--defined-only", library)}
needed = {line.split()[-1] for library in ours for line in lines("nm", "-D", "--undefined-only", library) if " U " in line}
mine = sorted({name.split("@")[0] for name in needed
               if name.split("@")[0] not in known and re.match(r"(cu|nccl)", name)})
names = {m[1] for library in ours for line in lines("readelf", "-d", library) if (m := re.search(r"NEEDED.*\[(.*)\]", line))}
names -= {library.rsplit("/", 1)[1] for library in ours}
names = [n for n in names if re.match(r"lib(cu|nccl|nv|torch_)", n) and "cudart" not in n]
source = "#include <stdlib.h>\n" + "".join(f"void {name}(void) {{ abort(); }}\n" for name in mine)
for i, name in enumerate(sorted(names)):
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-x", "c", "-", "-o", f"{stand_ins}/{name}", f"-Wl,-soname,{name}"],
                   input=source if i == 0 else "", text=True, check=True)
PYTHON

export LD_LIBRARY_PATH=$stand_ins:$libtorch
run() { "$kit/gpu_kit" "$@" 2> >(grep -v 'no version information available' >&2); }
run --version
[ "$(run --list | wc -l)" -ge 100 ] || { echo "gpu-kit: --list names too few cases" >&2; exit 1; }
run parity --device cpu --ranks 2 --only hybrid
