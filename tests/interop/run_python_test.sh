#!/usr/bin/env bash
# Runs one interoperability test with the Python of .venv; exit 77 (skipped, with the reason) when it is not there.
here=$(cd "$(dirname "$0")" && pwd)
python=$here/../../.venv/bin/python
[ -x "$python" ] || { echo "skipped: no .venv with PyTorch; ./dev test makes it"; exit 77; }
test=$1; shift
exec "$python" "$here/$test" "$@"
