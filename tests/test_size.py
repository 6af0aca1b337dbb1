"""The size of the repository, and what it must not hold."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MB = 1_000_000
LIMIT = 40 * MB


def tracked(root: Path = ROOT) -> list[Path]:
    """Tracked files, or in an unpacked archive all files outside hidden folders."""
    try:
        listed = (
            subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True)
            .stdout.decode()
            .split("\0")
        )
        return [root / name for name in listed if name and (root / name).is_file()]
    except (OSError, subprocess.CalledProcessError):
        return [
            p
            for p in root.rglob("*")
            if p.is_file() and not any(part.startswith(".") for part in p.relative_to(root).parts)
        ]


def weight(files) -> int:
    return sum(p.stat().st_size for p in files)


def over(files, limit: int) -> bool:
    return weight(files) > limit


def test_tracked_files_stay_under_40_mb():
    assert len(tracked()) > 50
    assert not over(tracked(), LIMIT)


WEIGHTS = "traces/smollm2/weights"


@pytest.mark.parametrize(
    "folder, limit, apart",
    [("real/tiny", 14 * MB, ""), ("traces", 18 * MB, WEIGHTS), (WEIGHTS, 14 * MB, "")],
)
def test_models_and_recordings_stay_within_their_limits(folder, limit, apart):
    inside = [p for p in tracked() if p.is_relative_to(ROOT / folder)]
    inside = [p for p in inside if not apart or not p.is_relative_to(ROOT / apart)]
    assert inside
    assert not over(inside, limit)


def test_traces_hold_no_code():
    assert not list((ROOT / "traces").rglob("*.py"))


def test_control_a_heavy_file_is_noticed(tmp_path):
    (tmp_path / "heavy").write_bytes(bytes(2000))
    assert over(tracked(tmp_path), 1999)
    assert not over(tracked(tmp_path), 2000)
