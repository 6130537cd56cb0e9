#!/usr/bin/env bash
# Finding: a delta-rs table that was opened before another writer's delete refuses every append until it is refreshed.
#
# Versions:  deltalake 1.6.6, pyarrow 26.0.1
# Guess:     an append conflicts with nothing; delta-rs rebases it on the newest version, as it does after other appends.
# Behaviour: after another writer's append, an append through the old handle is committed; after another writer's delete it
#            raises CommitFailedError, each time, until `update_incremental()`.
# Seen:      append after an append: committed; after a delete: CommitFailedError; again: CommitFailedError; refreshed: committed
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==26.0.1
"$work/venv/bin/python" - "$work" <<'PY'
import sys
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction, CommitProperties
import json, os, pyarrow.parquet as pq

path = sys.argv[1] + "/table"
rows = pa.table({"n": pa.array([1, 2, 3], pa.int64())})
write_deltalake(path, rows)
count = 0


def append(handle):
    """Commit one new file through a handle that was opened earlier."""
    global count
    count += 1
    name = f"new-{count}.parquet"
    pq.write_table(rows, f"{path}/{name}")
    action = AddAction(
        path=name,
        size=os.path.getsize(f"{path}/{name}"),
        partition_values={},
        modification_time=0,
        data_change=True,
        stats=json.dumps({"numRecords": 3}),
    )
    try:
        handle.create_write_transaction([action], "append", handle.schema())
        return "committed"
    except Exception as error:
        return type(error).__name__


handle = DeltaTable(path)
write_deltalake(path, rows, mode="append")
after_append = append(handle)
handle = DeltaTable(path)
DeltaTable(path).delete("n = 1")
after_delete, again = append(handle), append(handle)
handle.update_incremental()
refreshed = append(handle)
print(f"append after an append: {after_append}; after a delete: {after_delete}; again: {again}; refreshed: {refreshed}")
sys.exit((after_append, after_delete, again, refreshed) != ("committed", "CommitFailedError", "CommitFailedError", "committed"))
PY
