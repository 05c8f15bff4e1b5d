#!/usr/bin/env bash
# run_train.sh DEMO BIN WORK TEXTS: what ./dev demo --train shows, in short, and what has to be true of it: the loss curve is the same
# for one process, for four that stop and two that go on, and for five, which take unequal parts of the batch, and seven that go on.
set -euo pipefail
demo=$1 bin=$2 work=$3 texts=$4
trap 'rm -rf "$work" "$work.log"' EXIT
"$demo" "$bin" "$work" 6 "$texts" --steps 12 --save-every 3 > "$work.log"

# part N: what the N-th command printed.
part() { awk -v n="$1" '/^\$ /{ at++ } at == n' "$work.log"; }
fail() { echo "$*" >&2; cat "$work.log" >&2; exit 1; }
[ "$(grep -c '^\$ ' "$work.log")" = 5 ] || fail "not five commands"
[ "$(cat "$work/run/latest")" = step_6 ] || fail "latest names $(cat "$work/run/latest")"
# Into a file first: grep -q leaves a pipe as soon as it has found something, which ends the writer with an error.
part 3 > "$work/listed"
grep -q 'exp_avg,exp_avg_sq,step  *6  *28$' "$work/listed" || fail "no optimizer state listed"
part 5 > "$work/second"
grep -q '^resumed .*on-two after step 6, on 2 processes' "$work/second" || fail "not resumed"
grep -q "loss of steps 1 to 12; ':' where training was resumed" "$work/second" || fail "no curve"
curve() { grep '^ *[0-9.]* |' "$1"; }
[ "$(curve "$work/second" | wc -l)" = 12 ] && [ "$(curve "$work/second" | tr -cd '*' | wc -c)" = 12 ] || fail "not 12 rows and points"
[ "$(sed -n "s/.*points='\([^']*\)'.*/\1/p" "$work/loss.svg" | wc -w)" = 12 ] || fail "not 12 points in the SVG"
grep -q '>resumed</text>' "$work/loss.svg" || fail "no mark in the SVG"

# Unequal parts of the 12 rows: 2 or 3, then 1 or 2.
# shellcheck disable=SC2086
"$bin/fsdp_train" --processes 5 --steps 12 --stop-at 11 --save "$work/five" $texts > "$work/on-five"
# shellcheck disable=SC2086
"$bin/fsdp_train" --processes 7 --steps 12 --resume "$work/five" $texts > "$work/on-seven"

# same STEP A B: the losses of that step are within 0.0005.
loss() { sed -n "s/.*step  *$1 of .* loss \([0-9.]*\) .*/\1/p" "$2"; }
same() {
  awk -v a="$(loss "$1" "$2")" -v b="$(loss "$1" "$3")" -v what="step $1 in $3" 'BEGIN {
    if (a == "" || b == "" || a - b > 0.0005 || b - a > 0.0005) { print "losses of " what ": " a " and " b; exit 1 } }' >&2
}
part 1 > "$work/whole"
same 12 "$work/whole" "$work/second"
same 10 "$work/whole" "$work/on-five"
same 12 "$work/whole" "$work/on-seven"
