#!/usr/bin/env bash
# ./dev demo as on a machine without Debian's packages and without root: a fresh clone, the user nobody, and of /usr/bin nothing but bash,
# coreutils, grep, sed and Python 3 with pip: no compiler, headers, CMake, Ninja, dpkg, apt or sudo.   no_root.sh WORK_FOLDER [CCACHE_FOLDER]
# CCACHE_FOLDER: ccache is there too, and takes from it what this compiler made of the same sources before.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ "$(id -u)" -eq 0 ] && unshare -m true 2>/dev/null || { echo "skipped: hiding folders needs root and unshare"; exit 0; }
rm -rf "$1" && mkdir -p "$1"/{bin,empty,home,tool}
work=$(cd "$1" && pwd) cache=${2:-}
git clone -q . "$work/clone"
chown -R nobody "$work/clone" "$work/home"
keep=(bash sh env python3 grep sed awk nproc id uname mkdir ln cat rm cp mv ls chmod dirname basename head tail cut sha256sum sleep touch true)
[ -z "$cache" ] || { keep+=(ccache); mkdir "$work/cache"; }
for name in "${keep[@]}"; do cp -L "$(PATH=/usr/bin:/bin type -P "$name")" "$work/bin/"; done
cp "$(type -P setpriv)" "$(type -P mount)" "$work/tool/"

hide_and_build() {
  [ -z "$cache" ] || "$work/tool/mount" --bind "$cache" "$work/cache"
  local folder
  for folder in /usr/include /usr/lib/gcc /usr/lib/x86_64-linux-gnu/cmake /usr/lib/x86_64-linux-gnu/pkgconfig /usr/share/pkgconfig \
    /usr/local/bin /usr/sbin; do
    [ ! -d "$folder" ] || "$work/tool/mount" --bind "$work/empty" "$folder"
  done
  "$work/tool/mount" --bind "$work/bin" /usr/bin
  local settings=(PATH=/usr/bin HOME="$work/home" CCACHE_DIR="$work/cache" CCACHE_READONLY=true CCACHE_TEMPDIR="$work/home/ccache") name
  while IFS='=' read -r name _; do settings+=("$name=${!name}"); done < <(env | grep ^PIP_)
  cd "$work/clone"
  "$work/tool/setpriv" --reuid nobody --regid nogroup --clear-groups env -i "${settings[@]}" ./dev demo
}
export work cache
export -f hide_and_build
unshare -m bash -ec hide_and_build > "$work/demo.txt" 2> "$work/build.txt" ||
  { tail -n 40 "$work/build.txt" >&2; echo "FAILED: ./dev demo without root" >&2; exit 1; }
grep -q "54 of 54 tensors equal" "$work/demo.txt" || { echo "FAILED: the demo did not show what it shows" >&2; exit 1; }
grep "dev:" "$work/build.txt"
needed=$(ldd "$work/clone/build/portable/bin/tessera" 2>&1 || true)
[[ $needed = *"not a dynamic executable"* || $needed = *"statically linked"* ]] || { echo "FAILED: it needs $needed" >&2; exit 1; }
echo "built and shown as nobody, with nothing but bash, coreutils and Python"
