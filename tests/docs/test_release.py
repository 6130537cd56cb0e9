"""The release workflow runs what it names, and nothing foreign before the files are safe."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
RELEASE = (WORKFLOWS / "release.yml").read_text(encoding="utf-8")


def _jobs() -> dict[str, str]:
    parts = re.split(r"^  (\w+):.*\n", RELEASE.partition("\njobs:\n")[2], flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_each_action_stands_by_its_whole_hash_and_says_which_version_that_is() -> None:
    used = re.findall(r"uses: (\S+)(.*)", RELEASE)
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action), (
            f"{action}: a tag or branch can be moved"
        )
        assert re.match(r" # v\d+\.\d+\.\d+\b", comment), action


def test_what_is_installed_to_build_stands_by_its_hash() -> None:
    installs = [line for line in RELEASE.splitlines() if "pip install" in line]
    assert installs and all("--require-hashes" in line and "build-tools.txt" in line for line in installs)
    _all_have_hashes("build-tools.txt", {"build", "twine", "tox", "hatchling"})


def test_what_makes_the_bill_of_materials_stands_by_its_hash() -> None:
    section = (
        (ROOT / "tox.ini").read_text(encoding="utf-8").partition("[testenv:sbom]")[2].partition("\n[")[0]
    )
    assert "\ndeps = -r .github/workflows/sbom-tools.txt\n" in section
    _all_have_hashes("sbom-tools.txt", {"cyclonedx-bom"})


def _all_have_hashes(file: str, named: set[str]) -> None:
    tools = (WORKFLOWS / file).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in tools.splitlines() if line and not line.startswith("#")]
    assert named <= {line.partition("==")[0] for line in lines}
    for line in lines:
        assert re.match(r"[\w.-]+(\[\w+\])?==\S+ .*--hash=sha256:[0-9a-f]{64}", line), line


def test_nothing_runs_between_the_build_and_the_upload_and_the_bill_of_materials_has_a_job_of_its_own() -> (
    None
):
    jobs = _jobs()
    assert "run: python -m build --no-isolation" in jobs["build"] and "sbom" not in jobs["build"]
    between = jobs["build"].partition("-m build --no-isolation")[2].partition("upload-artifact")[0]
    assert "run:" not in between
    assert "tox -e sbom" in jobs["sbom"] and "run:" not in jobs["publish"]
    for name, job in jobs.items():
        assert ("write" in job.partition("steps:")[0]) == (name == "publish"), f"{name} may write"
