#!/usr/bin/env bash
# Saves with the example from 3 ranks, lists it, loads it into 2 and 7, and once more over itself: refused.
set -eu
live_state=$1 inspect=$2 work=$3
rm -rf "$work"
trap 'rm -rf "$work"' EXIT
"$live_state" save "$work/run/step_1" 3
"$inspect" "$work/run/step_1" > "$work/listed"  # grep -q would leave a pipe early
grep -qx 'model.layer.weight float32 \[10,6\]' "$work/listed"
"$live_state" load "$work/run/step_1" 2
"$live_state" load "$work/run/step_1" 7
if "$live_state" save "$work/run/step_1" 3 2> "$work/refused"; then
  echo "a checkpoint was replaced without being asked to" >&2
  exit 1
fi
grep -q 'already exists' "$work/refused"
