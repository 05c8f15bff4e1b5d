#!/usr/bin/env bash
# run_train.sh TRAIN BIN WORK TEXT...: what ./dev demo --train shows: one process; four that stop half way; the optimizer
# listed, the checkpoint moved to two ranks and proved; two that go on to the same losses, drawn in the terminal and as SVG.
set -euo pipefail
train=$1 bin=$2 work=$3
shift 3
rm -rf "$work"
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT
"$train" --steps 12 "$@" > "$work/whole"
"$train" --processes 4 --steps 12 --stop-at 6 --save-every 3 --save "$work/run" "$@" > "$work/first"
[ "$(cat "$work/run/latest")" = step_6 ] || { echo "latest names $(cat "$work/run/latest")" >&2; exit 1; }
"$bin/ckpt-inspect" optim "$work/run" | grep -q 'block0.qkv.weight'
"$bin/ckpt-reshard" "$work/run" "$work/on-two" --world-size 2 --verify
"$train" --processes 2 --steps 12 --resume "$work/on-two" --svg "$work/loss.svg" "$@" > "$work/second"
grep -q '^resumed .*on-two after step 6, on 2 processes' "$work/second"
loss() { sed -n 's/.*step  *12 of 12 .* loss \([0-9.]*\) .*/\1/p' "$1"; }
awk -v a="$(loss "$work/whole")" -v b="$(loss "$work/second")" 'BEGIN {
  if (a == "" || b == "" || a - b > 0.0005 || b - a > 0.0005) { print "losses of step 12: " a " and " b; exit 1 } }' >&2
grep -q "loss of steps 1 to 12; ':' where training was resumed" "$work/second"
curve() { grep '^ *[0-9.]* |' "$1"; }
[ "$(curve "$work/second" | wc -l)" = 12 ] && [ "$(curve "$work/second" | tr -cd '*' | wc -c)" = 12 ]
[ "$(sed -n "s/.*points='\([^']*\)'.*/\1/p" "$work/loss.svg" | wc -w)" = 12 ]
grep -q '>resumed</text>' "$work/loss.svg"
