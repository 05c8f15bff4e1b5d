#!/bin/sh
# Installs the commands that lie beside this script:  ./install.sh [PREFIX]     PREFIX: ~/.local, or /usr/local for root
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ $# -gt 1 ] || [ "${1#-}" != "${1:-}" ]; then
  sed -n '2s/^# //p' "$0" >&2
  exit 2
fi
prefix=${1:-}
if [ -z "$prefix" ]; then
  if [ "$(id -u)" -eq 0 ]; then prefix=/usr/local; else prefix=$HOME/.local; fi
fi
mkdir -p "$prefix"
for folder in bin libexec share; do cp -R "$here/$folder" "$prefix/"; done
"$prefix/bin/ckpt-inspect" --version
case ":$PATH:" in
  *":$prefix/bin:"*) ;;
  *) echo "add $prefix/bin to PATH, or type it in front: $prefix/bin/ckpt-inspect" ;;
esac
