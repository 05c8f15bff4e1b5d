#!/usr/bin/env bash
# pack.sh PROGRAM FOLDER OUT.tar : the kit as one file, from the built program and what fetch.sh left in FOLDER. What the
# program links goes along, but for what comes with torch and with the C and C++ compilers of any Linux.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
program=$1 folder=$2 tar=$3
most_mib=48

kit=$folder/gpu-kit
rm -rf "$kit" && mkdir -p "$kit/lib"
strip -o "$kit/gpu_kit" "$program"
for name in $(readelf -d "$kit/gpu_kit" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
  case $name in
    libtorch* | libc10* | libcudart* | libstdc++.so* | libgcc_s.so* | libc.so* | libm.so* | libpthread.so* | libdl.so* | ld-linux*) continue ;;
  esac
  # Not through a pipe: what it writes to goes away before it is done.
  cp -L "$(awk -v name="$name" '$1 == name && /x86-64/ { print $NF; exit }' <<< "$(/sbin/ldconfig -p)")" "$kit/lib/$name"
done
cp "$here/run.sh" "$here/peer_fsdp2.py" "$kit/"
sed -n "s/^__version__ = '\([0-9]*\.[0-9]*\).*/\1/p" "$folder/libtorch/torch/version.py" > "$kit/built_for"
{
  echo "commit $(git -C "$here" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)$(git -C "$here" diff --quiet HEAD 2>/dev/null || echo ' with changes')"
  echo "torch $(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$folder/libtorch/torch/version.py")"
  echo "needs $(readelf -V "$kit/gpu_kit" | grep -o 'GLIBC_[0-9.]*\|GLIBCXX_[0-9.]*' | sort -uV | awk -F_ '{ newest[$1] = $0 } END { for (each in newest) printf "%s ", newest[each] }')"
} > "$kit/about"
if [ -f "$folder/libnccl.so.2.xz" ]; then cp "$folder/libnccl.so.2.xz" "$kit/"; fi
tar -cf "$tar" -C "$folder" gpu-kit
mib=$(($(stat -c %s "$tar") / 1048576 + 1))
[ "$mib" -le "$most_mib" ] || { echo "gpu-kit: $tar has $mib MiB; at most $most_mib may travel" >&2; exit 1; }
echo "gpu-kit: $tar, $mib MiB: tar xf it on the machine with the GPU and run gpu-kit/run.sh" >&2
