"""Who may write into a run."""

import json
import os
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from elias_ray import run_lock
from elias_ray.artifacts import LOCK, Folder
from elias_ray.errors import UserError
from elias_ray.run_lock import Holder, owning


def leave(run: Path, holder: Holder) -> None:
    (run / LOCK).write_text(json.dumps(asdict(holder)))


def test_a_second_job_is_refused_and_told_who_is_there(tmp_path: Path) -> None:
    run = Folder.at(tmp_path)
    with owning(run):
        with (
            pytest.raises(UserError, match=rf"is in use: process {os.getpid()} on .+ writes there"),
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


def test_another_host_is_watched_for_a_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "BEAT_EVERY", 0.2)
    monkeypatch.setattr(run_lock, "LOST_AFTER", 1.0)
    elsewhere = replace(Holder.this(), host="elsewhere")
    leave(tmp_path, elsewhere)
    beat = threading.Timer(0.5, leave, [tmp_path, replace(elsewhere, beat=time.time() + 1)])
    beat.start()
    with pytest.raises(UserError, match="on elsewhere writes there"), owning(Folder.at(tmp_path)):
        pass
    with owning(Folder.at(tmp_path)):  # it has fallen silent
        pass


def test_a_file_that_makes_no_sense_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("{")
    with owning(Folder.at(tmp_path)):
        pass


def test_one_that_was_taken_over_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()

    def stop(code: int) -> None:
        assert code == 1
        stopped.set()
        threading.Event().wait()  # nothing comes after it

    monkeypatch.setattr(run_lock, "BEAT_EVERY", 0.05)
    monkeypatch.setattr("os._exit", stop)
    with owning(Folder.at(tmp_path)):
        leave(tmp_path, replace(Holder.this(), host="elsewhere"))
        assert stopped.wait(timeout=5)
    assert json.loads((tmp_path / LOCK).read_text())["host"] == "elsewhere"
