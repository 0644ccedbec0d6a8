#!/usr/bin/env bash
# The core without skipbench/contrib: its tests, in a copy of the tracked files without that folder and its tests.
#     scripts/core_alone.sh [words for pytest]
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
chmod 755 "$place" # other users run in it, too: tests of the sandbox
mkdir "$place/skipbench"
git ls-files | grep -vE '^(skipbench|tests)/contrib/' | tar cf - --files-from=- | tar xf - -C "$place/skipbench"
if [ -d ../shared ]; then ln -s "$PWD/../shared" "$place/shared"; fi
cd "$place/skipbench"
PYTHONPATH=$PWD "$python" -m pytest -q -p no:cacheprovider "$@"
