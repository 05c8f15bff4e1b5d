#!/usr/bin/env bash
# The .deb and the tarball of DIST as their users have them: unpacked and installed into folders.   packages.sh DIST WORK_FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
dist=$(cd "$1" && pwd) samples=$PWD/sample_checkpoints
rm -rf "$2" && mkdir -p "$2"
work=$(cd "$2" && pwd)
fail() { echo "FAILED: $*" >&2; exit 1; }

# check PREFIX : commands, links, HDF5's program, man pages, completions and licences.
check() {
  local name
  for name in inspect reshard convert; do
    [ "$(env -i "$1/bin/ckpt-$name" --version | cut -d' ' -f1)" = "ckpt-$name" ] || fail "$1: ckpt-$name"
    [ -L "$1/bin/ckpt-$name" ] || fail "$1: ckpt-$name is no link"
    for file in "man/man1/ckpt-$name.1" "bash-completion/completions/ckpt-$name" "zsh/site-functions/_ckpt-$name"; do
      [ -s "$1/share/$file" ] || fail "$1: no share/$file"
    done
  done
  for name in LICENSE licenses/{fmt,ftxui,xxhash,CLI11,hdf5,zstd,musl,libcxx}.txt; do
    [ -s "$1/share/doc/tessera/$name" ] || fail "$1: no licence $name"
  done
  env -i "$1/bin/ckpt-inspect" hash "$samples/hdf5/contiguous/checkpoint" >/dev/null || fail "$1: HDF5"
}

echo "== tarball"
tar -xzf "$dist"/tessera-ckpt-*-linux-x86_64.tar.gz -C "$work"
"$work"/tessera-ckpt-*/install.sh "$work/tarball" >/dev/null
check "$work/tarball"
"$work"/tessera-ckpt-*/install.sh "$work/tarball" >/dev/null || fail "installed over itself"

echo "== .deb"
command -v dpkg-deb >/dev/null || { echo "skipped: no dpkg-deb"; exit 0; }
deb=$(ls "$dist"/tessera-ckpt_*_amd64.deb)
[ -z "$(dpkg-deb -f "$deb" Depends)" ] || fail "it depends on $(dpkg-deb -f "$deb" Depends)"
dpkg-deb -x "$deb" "$work/deb"
check "$work/deb/usr"
echo "both hold"
