#!/usr/bin/env bash
# Finding: `DeltaTable.file_uris()` of a local table gives percent-encoded names without a scheme, which are no paths.
#
# Versions:  deltalake 1.6.6, pyarrow 26.0.1
# Guess:     what has no `file://` in front is a path that `open()` takes.
# Behaviour: a folder with a space comes back as `%20`; the same table's `file_uris()` in a folder without one opens.
# Seen:      folder "plain": opens; folder "my table": holds %20, does not open
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==26.0.1
"$work/venv/bin/python" - "$work" <<'PY'
import os, sys
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

seen = {}
for folder in ("plain", "my table"):
    path = f"{sys.argv[1]}/{folder}"
    write_deltalake(path, pa.table({"n": [1]}))
    (uri,) = DeltaTable(path).file_uris()
    seen[folder] = ("%20" in uri, "://" in uri, os.path.exists(uri))
    print(f'folder "{folder}":', "holds %20," if "%20" in uri else "", "opens" if os.path.exists(uri) else "does not open")
sys.exit(0 if seen == {"plain": (False, False, True), "my table": (True, False, False)} else 1)
PY
