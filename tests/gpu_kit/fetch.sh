#!/usr/bin/env bash
# fetch.sh FOLDER [--nccl] : what the kit is built against, once. Of LibTorch with CUDA headers and the libraries that are
# linked; of its NCCL the header; with --nccl a newer NCCL, slimmed, that several ranks can share a GPU with.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$1 with_nccl=${2:-}
torch_version=2.11.0 nccl_header=2.28.9 nccl_shared=2.30.7

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
download() {  # download NAME===VERSION : "==" would take a +cpu build where one is offered
  [ -x "$folder/venv/bin/python3" ] || python3 -m venv "$folder/venv"
  "$folder/venv/bin/python3" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version 3.12 --dest "$folder/wheels" "$1" >&2
}
extract() {  # extract WHEEL PATTERN... : those of its files, into libtorch/
  python3 - "$folder/libtorch" "$@" <<'PYTHON'
import fnmatch, sys, zipfile
folder, wheel, patterns = sys.argv[1], sys.argv[2], sys.argv[3:]
with zipfile.ZipFile(wheel) as archive:
    archive.extractall(folder, [n for n in archive.namelist() if any(fnmatch.fnmatch(n, p) for p in patterns)])
PYTHON
}

if [ "$(cat "$folder/libtorch/.fetched" 2>/dev/null || true)" != "$torch_version $nccl_header" ]; then
  echo "gpu-kit: fetching LibTorch $torch_version with CUDA and the header of NCCL $nccl_header: 0.7 GB" >&2
  download "torch===$torch_version"
  download "nvidia-nccl-cu13===$nccl_header"
  rm -rf "$folder/libtorch"
  extract "$folder"/wheels/torch-"$torch_version"*.whl 'torch/include/*' torch/version.py torch/lib/libtorch.so \
    torch/lib/libtorch_cpu.so torch/lib/libtorch_cuda.so torch/lib/libc10.so torch/lib/libc10_cuda.so
  extract "$folder"/wheels/nvidia_nccl_cu13-"$nccl_header"-*.whl 'nvidia/nccl/include/*'
  grep -q "^__version__ = '$torch_version+cu13" "$folder/libtorch/torch/version.py" ||
    { echo "gpu-kit: that torch $torch_version is not for CUDA 13: $(grep ^__version__ "$folder/libtorch/torch/version.py")" >&2; exit 1; }
  rm -rf "$folder/wheels"
  echo "$torch_version $nccl_header" > "$folder/libtorch/.fetched"
fi
if [ -n "$with_nccl" ] && [ "$(cat "$folder/.nccl" 2>/dev/null || true)" != "$nccl_shared" ]; then
  echo "gpu-kit: fetching NCCL $nccl_shared: 0.2 GB" >&2
  download "nvidia-nccl-cu13===$nccl_shared"
  python3 -m zipfile -e "$folder"/wheels/nvidia_nccl_cu13-"$nccl_shared"-*.whl "$folder/wheels/nccl"
  python3 "$here/slim_nccl.py" "$folder/wheels/nccl/nvidia/nccl/lib/libnccl.so.2" "$folder/libnccl.so.2.xz"
  rm -rf "$folder/wheels"
  echo "$nccl_shared" > "$folder/.nccl"
fi
