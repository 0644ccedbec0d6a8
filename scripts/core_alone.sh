#!/usr/bin/env bash
# The core without skipbench/contrib: its tests, in a copy of the tracked files without that folder and its tests.
# PART=lowbit leaves out that part alone, with those that import it.
#     [PART=NAME] scripts/core_alone.sh [words for pytest]
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
gone=contrib/
if [ -n "${PART:-}" ]; then
  [ -d "skipbench/contrib/$PART" ] || { echo "no part $PART in skipbench/contrib"; exit 2; }
  users=$(grep -rlE "skipbench\.contrib\.$PART\b" skipbench/contrib/*/ --include=*.py | cut -d/ -f3 || true)
  gone="contrib/($(printf '%s\n' "$PART" $users | sort -u | paste -sd '|'))/"
  echo "without $gone"
fi
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
chmod 755 "$place" # other users run in it, too: tests of the sandbox
mkdir "$place/skipbench"
git ls-files | grep -vE "^(skipbench|tests)/$gone" | tar cf - --files-from=- | tar xf - -C "$place/skipbench"
if [ -d ../shared ]; then ln -s "$PWD/../shared" "$place/shared"; fi
cd "$place/skipbench"
PYTHONPATH=$PWD "$python" -m pytest -q -p no:cacheprovider --ignore tests/contrib "$@"
