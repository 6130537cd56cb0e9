"""What was sent is written to files that are this user's alone, and to no other file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from celery_poison.keep.private_files import open_private

FLAGS = os.O_WRONLY | os.O_TRUNC


def test_a_new_file_and_an_old_one_of_ours_are_for_nobody_else(tmp_path: Path) -> None:
    for name in ("new", "old"):
        path = tmp_path / name
        if name == "old":
            path.write_text("what was in it")
            path.chmod(0o644)
        with os.fdopen(open_private(path, FLAGS), "w") as file:
            file.write("secret")
        assert path.read_text() == "secret" and stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["link", "broken link", "second name", "pipe", "directory"])
def test_what_may_be_another_file_is_refused_and_nothing_of_it_is_touched(tmp_path: Path, kind: str) -> None:
    victim, path = tmp_path / "victim", tmp_path / "export"
    victim.write_text("precious")
    victim.chmod(0o644)
    make = {
        "link": lambda: path.symlink_to(victim),
        "broken link": lambda: path.symlink_to(tmp_path / "nowhere"),
        "second name": lambda: path.hardlink_to(victim),
        "pipe": lambda: os.mkfifo(path),
        "directory": path.mkdir,
    }
    make[kind]()
    with pytest.raises(OSError):
        open_private(path, FLAGS)
    assert victim.read_text() == "precious" and stat.S_IMODE(victim.stat().st_mode) == 0o644
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user's")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    path.write_text("precious")
    os.chown(path, 12345, -1)
    with pytest.raises(PermissionError, match="of user 12345"):
        open_private(path, os.O_WRONLY | os.O_APPEND)
    assert path.read_text() == "precious"
