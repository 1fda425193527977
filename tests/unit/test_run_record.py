"""What a run notes of its making."""

from pathlib import Path

import pytest
from tensorboardX import SummaryWriter

from elias_ray.artifacts import Folder
from elias_ray.journal import read_losses
from elias_ray.run_record import read_hardware, read_times, timing


def test_the_longest_time_of_a_step_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 5.0, 10.0, 10.1, 20.0, 27.5])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    folder = Folder.at(tmp_path / "run")
    assert read_times(folder) == {}
    for step in ("prepare", "prepare", "stage1"):  # the second time it was done before
        with timing(folder, step):
            pass
    assert read_times(folder) == {"prepare": 5.0, "stage1": 7.5}


def test_a_step_that_fails_notes_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="failed"), timing(Folder.at(tmp_path), "prepare"):
        raise RuntimeError("failed")
    assert read_times(Folder.at(tmp_path)) == {}


def test_a_run_that_noted_nothing(tmp_path: Path) -> None:
    assert read_hardware(Folder.at(tmp_path)) is None
    assert read_losses(Folder.at(tmp_path)) == {}


def test_losses_by_step(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path / "a")) as writer:
        for step in range(1, 6):
            writer.add_scalar("loss", 1 / step, step)
            writer.add_scalar("lr_factor", 0.5, step)
    found = read_losses(Folder.at(tmp_path / "a"))
    assert list(found) == [1, 2, 3, 4, 5]
    assert list(found.values()) == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
