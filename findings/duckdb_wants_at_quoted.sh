#!/usr/bin/env bash
# Finding: since 1.3, DuckDB parses a column named `at` only in quotes.
#
# Versions:  duckdb 1.2.2, 1.3.2, 2.0.1
# Guess:     `at` is reserved nowhere in SQL, so a query that ran in 1.2 runs in every later release.
# Behaviour: 1.2 parses `SELECT max(at)`; 1.3 and 2.0 raise ParserException. `SELECT max("at")` is parsed by all three.
# Seen:      1.2.2: at parsed, "at" parsed
#            1.3.2: at ParserException, "at" parsed
#            2.0.1: at ParserException, "at" parsed
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
for version in 1.2.2 1.3.2 2.0.1; do
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check "duckdb==$version"
    "$work/venv/bin/python" - <<'PY'
import sys
import duckdb


def parse(column):
    try:
        duckdb.sql(f'SELECT max({column}) FROM (SELECT 1 AS "at")').fetchall()
        return "parsed"
    except Exception as error:
        return type(error).__name__


bare, quoted = parse("at"), parse('"at"')
print(f'{duckdb.__version__}: at {bare}, "at" {quoted}')
old = duckdb.__version__.startswith("1.2.")
sys.exit(0 if (bare, quoted) == ("parsed" if old else "ParserException", "parsed") else 1)
PY
done
