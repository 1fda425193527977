"""Who may write into a run."""

import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from elias_ray import run_lock
from elias_ray.artifacts import Folder
from elias_ray.errors import UserError
from elias_ray.run_lock import LOCK, Holder, owning


def leave(run: Path, holder: Holder) -> None:
    (run / LOCK).write_text(json.dumps(asdict(holder)))


def test_a_second_job_is_refused_and_told_who_is_there(tmp_path: Path) -> None:
    run = Folder.at(tmp_path)
    with owning(run):
        with (
            pytest.raises(UserError, match=rf"is in use: process {os.getpid()} on .+, last heard of \d+ s ago"),
            owning(run),
        ):
            pass
        assert (tmp_path / LOCK).exists()  # the one that was refused took nothing away
    assert not (tmp_path / LOCK).exists()
    with owning(run):
        pass


def test_a_job_that_failed_leaves_the_run_free(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="failed"), owning(Folder.at(tmp_path)):
        raise ValueError("failed")
    assert not (tmp_path / LOCK).exists()


def test_a_dead_process_of_this_host_holds_nothing(tmp_path: Path) -> None:
    leave(tmp_path, replace(Holder.this(), process=2**22 + 1))  # beyond what Linux gives out
    with owning(Folder.at(tmp_path)):
        pass
    leave(tmp_path, replace(Holder.this(), began=1.0))  # its number has gone to another process
    with owning(Folder.at(tmp_path)):
        pass


def test_another_host_is_believed_for_a_while(tmp_path: Path) -> None:
    elsewhere = replace(Holder.this(), host="elsewhere", beat=time.time() - run_lock.LOST_AFTER / 2)
    leave(tmp_path, elsewhere)
    with pytest.raises(UserError, match="on elsewhere writes there"), owning(Folder.at(tmp_path)):
        pass
    leave(tmp_path, replace(elsewhere, beat=time.time() - run_lock.LOST_AFTER - 1))
    with owning(Folder.at(tmp_path)):
        pass


def test_a_file_that_makes_no_sense_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("{")
    with owning(Folder.at(tmp_path)):
        pass


def test_one_that_was_taken_over_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "BEAT_EVERY", 0.05)
    with owning(Folder.at(tmp_path)):
        leave(tmp_path, replace(Holder.this(), host="elsewhere"))
        with pytest.raises(KeyboardInterrupt):
            time.sleep(5)
    assert json.loads((tmp_path / LOCK).read_text())["host"] == "elsewhere"
