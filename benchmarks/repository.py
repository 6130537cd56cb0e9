"""Puts the repository first on the path: its tests have the servers that benchmarks break."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
