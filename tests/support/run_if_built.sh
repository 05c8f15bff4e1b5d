#!/usr/bin/env bash
# run_if_built.sh PROGRAM ARG...: runs it; exit 77 (skipped, with the reason) when that configuration was not built.
[ -x "$1" ] || { echo "skipped: $1 is not built; ./dev test builds it"; exit 77; }
exec "$@"
