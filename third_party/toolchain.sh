#!/bin/sh
# Installs the pinned compiler, CMake and Ninja (toolchain.txt) below DIR, with nothing but Python 3 and pip:  toolchain.sh DIR
#   DIR/bin/cc c++ ar ranlib   zig's, for static programs: x86-64, musl
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
for tool in cc c++ ar ranlib; do
  flags=
  # zig would add its own undefined-behaviour traps, and take the CPU of this machine for that of all.
  case $tool in cc | c++) flags="-target x86_64-linux-musl -mcpu=x86_64 -fno-sanitize=undefined" ;; esac
  printf '#!/bin/sh\n# %s\nexec "${0%%/*}/../site/ziglang/zig" %s %s "$@"\n' "$(grep ziglang== "$here/toolchain.txt")" $tool "$flags" \
    > "$dir/bin/$tool"
  chmod +x "$dir/bin/$tool"
done
ln -s ../site/cmake/data/bin/cmake "$dir/bin/cmake"
ln -s ../site/bin/ninja "$dir/bin/ninja"
"$dir/bin/cmake" --version >/dev/null && "$dir/bin/ninja" --version >/dev/null
echo "$stamp" > "$dir/.complete"
