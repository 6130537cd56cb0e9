"""What a worker removes from the temporary directory: what killed workers left there, and nothing else."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_poison.worker.crash_reports import CrashReports
from tests import PATIENCE, sampled
from tests.worker.conftest import Crew

HOME = f"celery_poison-{os.geteuid()}"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary directory of this process and of the workers that it starts."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def _write(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    return path


def test_NEW_9_a_worker_removes_what_a_killed_one_left_and_nothing_of_the_users(
    crew: Crew, temporary: Path
) -> None:
    mine = [
        _write(temporary / "celery-poison-mine" / "src" / "work.py"),
        _write(temporary / "celery-poison-venv" / "pyvenv.cfg"),
        _write(temporary / "celery_poison-mine" / "7"),
    ]
    env = {"TMPDIR": str(temporary)}
    with crew.worker("killed", env=env) as killed:
        crew.send("healthy", 1).get(timeout=PATIENCE)
        killed.kill_group()
        killed.wait()
    left = [file for directory in temporary.glob(f"{HOME}/*") for file in directory.iterdir()]
    with crew.worker("next", env=env) as worker:
        worker.wait_ready()
        assert [path.read_text() for path in mine] == ["mine"] * 3
        assert left and not any(file.parent.exists() for file in left)
        assert (temporary / HOME).stat().st_mode & 0o777 == 0o700
        worker.stop()
    assert not list((temporary / HOME).iterdir())


def test_NEW_9_two_workers_leave_each_others_directories_and_what_somebody_put_beside_them(
    temporary: Path,
) -> None:
    first = CrashReports()
    beside = [_write(Path(first.path).parent / "notes"), _write(Path(first.path).parent / "kept" / "1" / "a")]
    CrashReports().remove()
    assert Path(first.path).is_dir() and all(path.exists() for path in beside)
    first.remove()
    assert not Path(first.path).exists() and all(path.exists() for path in beside)


def _link(home: Path) -> None:
    home.symlink_to(_write(home.with_name("elsewhere") / "left" / "1").parents[1])


def _open_to_others(home: Path) -> None:
    _write(home / "left" / "1")
    home.chmod(0o777)


@pytest.mark.parametrize("lay", sampled([_link, _open_to_others], [_write]))
def test_NEW_9_a_private_directory_that_others_could_have_laid_is_refused_and_the_worker_goes_on(
    crew: Crew, temporary: Path, lay: Callable[[Path], object]
) -> None:
    home = temporary / HOME
    lay(home)
    before = sorted(temporary.rglob("*"))
    with crew.worker(env={"TMPDIR": str(temporary)}) as worker:
        assert crew.send("healthy", 1).get(timeout=PATIENCE) == 1
        assert f"{home} is " in worker.log_text() and "remove it, or set TMPDIR" in worker.log_text()
    assert [path for path in sorted(temporary.rglob("*")) if "pymp" not in str(path)] == before


def test_NEW_9_the_private_directory_of_another_user_is_refused(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = os.geteuid() + 1
    left = _write(temporary / f"celery_poison-{stranger}" / "left" / "1")
    left.parents[1].chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    with pytest.raises(PermissionError, match=f"of user {os.getuid()}, not a private directory"):
        CrashReports()
    assert left.exists()
