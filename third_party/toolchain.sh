#!/bin/sh
# Installs the pinned compiler, CMake and Ninja (toolchain.txt) below DIR, with nothing but Python 3 and pip:  toolchain.sh DIR
#   DIR/bin/cc c++ ar ranlib   zig's, for static programs: x86-64, musl
#   DIR/bin/gnu-cc gnu-c++     zig's, for shared libraries that glibc 2.17 and newer load
#   DIR/bin/cmake ninja
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)
stamp=$(cat "$here/toolchain.txt" "$here/toolchain.sh")
[ "$(cat "$dir/.complete" 2>/dev/null || true)" != "$stamp" ] || exit 0
rm -rf "$dir" && mkdir -p "$dir/bin"
echo "fetching a compiler, CMake and Ninja from PyPI (0.2 GB)" >&2
python3 -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --target "$dir/site" \
  -r "$here/toolchain.txt" >&2
# script NAME WORDS : DIR/bin/NAME runs zig so. The version is in it, as compiler caches tell compilers by their content.
script() {
  printf '#!/bin/sh\n# %s\nexec "${0%%/*}/../site/ziglang/zig" %s "$@"\n' "$(grep ziglang== "$here/toolchain.txt")" "$2" > "$dir/bin/$1"
  chmod +x "$dir/bin/$1"
}
# zig would add its own undefined-behaviour traps, and take the CPU of this machine for that of all.
flags="-mcpu=x86_64 -fno-sanitize=undefined"
for tool in cc c++; do
  script $tool "$tool -target x86_64-linux-musl $flags"
  script gnu-$tool "$tool -target x86_64-linux-gnu.2.17 $flags"
done
script ar ar
script ranlib ranlib
ln -s ../site/cmake/data/bin/cmake "$dir/bin/cmake"
ln -s ../site/bin/ninja "$dir/bin/ninja"
"$dir/bin/cmake" --version >/dev/null && "$dir/bin/ninja" --version >/dev/null
printf '%s\n' "$stamp" > "$dir/.complete"  # echo would read the backslashes in it
