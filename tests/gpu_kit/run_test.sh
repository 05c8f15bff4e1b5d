#!/usr/bin/env bash
# run_test.sh GPU_KIT FOLDER : run.sh and the program on the CPU, with a python3 that only says which torch it has.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
program=$1 folder=$2
python=$(command -v python3)

die() { echo "run_test.sh: $*" >&2; exit 1; }
# expect NAME TEXT : the last run printed it.
expect() { grep -qF -- "$2" "$folder/printed" || { cat "$folder/printed"; die "$1: nothing says \"$2\""; }; }
# play CODE ARGUMENTS... : run.sh ends with that.
play() {
  local wanted=$1 code=0; shift
  rm -rf "$OUT" && mkdir -p "$OUT"
  "$kit/run.sh" "$@" > "$folder/printed" 2>&1 || code=$?
  [ $code -eq "$wanted" ] || { cat "$folder/printed"; die "run.sh $*: status $code, not $wanted"; }
}
field() { "$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$OUT/$1.json" "$2"; }

rm -rf "$folder" && mkdir -p "$folder/bin" "$folder/kit"
kit=$folder/kit
cp "$here/run.sh" "$kit/"
ln -s "$program" "$kit/gpu_kit"
echo 2.99 > "$kit/built_for"
echo "no commit" > "$kit/about"
says_torch() { printf '#!/bin/sh\necho "%s /nowhere/torch"\n' "$1" > "$folder/bin/python3"; chmod +x "$folder/bin/python3"; }
export PATH=$folder/bin:$PATH OUT=$folder/out KIT_DEVICE=cpu

# The torch of another minor release, and none.
says_torch 2.9.1+cpu
play 2
expect "other torch" "built for torch 2.99 and python3 here has torch 2.9.1+cpu"
printf '#!/bin/sh\nexit 1\n' > "$folder/bin/python3"
play 2
expect "no torch" "python3 here has no torch"
says_torch 2.99.1+cu130

# Ranks that are processes train as the plain model; what fails is a line, and the next case goes on.
KIT_ARGS="--ranks 2 --only unused" play 0 versions parity
expect "parity" "parity: 4 passed, 0 failed"
expect "versions" "versions: 2 passed, 0 failed"
[ "$(field parity passed)" = 4 ] || die "parity.json: $(cat "$OUT/parity.json")"
[ "$(field versions torch)" = 2.99.1+cu130 ] || die "versions.json: $(cat "$OUT/versions.json")"
code=0
"$program" parity --device cpu --ranks 2 --only unused --fail-case "found, FULL_SHARD flat" --out "$OUT" > "$folder/printed" || code=$?
[ $code -eq 1 ] || die "a failed case: status $code"
expect "a failed case" "FAILED unused: found, FULL_SHARD flat: rank 1: made to fail"
expect "a failed case" "parity: 3 passed, 1 failed"

# What is cut off keeps its file, and what comes after it is named.
rm "$kit/gpu_kit"
printf '#!/bin/sh\necho "{\\"part\\": \\"$1\\"}" > "$5/$1.json"\nsleep 60\n' > "$kit/gpu_kit"
chmod +x "$kit/gpu_kit"
KIT_SECONDS=4 play 1 speed state  # a busy machine takes a second to begin
expect "cut off" "speed: cut off after "
expect "cut off" "speed: speed.json has what was done by then"
expect "cut off" "state: not played: no time is left"
[ "$(field speed part)" = speed ] || die "speed.json: $(cat "$OUT/speed.json")"
echo "run.sh: refuses another torch, plays, reports failures, keeps what was cut off"
