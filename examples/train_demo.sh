#!/usr/bin/env bash
# train_demo.sh BIN OUT STOP 'TEXTS' [FLAG...]: what ./dev demo --train shows, and tests/fsdp/run_train.sh checks: training by
# BIN/fsdp_train on one process; on four, which stop after step STOP; the optimizer in what they saved, which is moved to two ranks
# and proved; and two that go on to the same losses, drawn in the terminal and as OUT/loss.svg. TEXTS is a pattern; FLAGs are the
# training's (--steps, --save-every).
set -euo pipefail
bin=$1 out=$2 stop=$3 pattern=$4
shift 4
flags=("$@")
# shellcheck disable=SC2206
texts=($pattern)
rm -rf "$out"
mkdir -p "$out"

show() { local line="$*"; printf '\n$ %s\n' "${line/"${texts[*]}"/$pattern}"; "$@"; }
train() { show "$bin/fsdp_train" "$@" ${flags[@]+"${flags[@]}"} "${texts[@]}"; }

printf '# A small transformer on text files: one process, then four that save in the background and stop half way\n'
train
train --processes 4 --save "$out/run" --stop-at "$stop"
printf '\n# The checkpoint that run/latest names: its optimizer, moved to two ranks, and on from there to the same end\n'
show "$bin/ckpt-inspect" optim "$out/run"
show "$bin/ckpt-reshard" "$out/run" "$out/on-two" --world-size 2 --verify
train --processes 2 --resume "$out/on-two" --svg "$out/loss.svg"
