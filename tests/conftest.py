"""Fixtures shared by all tests."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import examples


@pytest.fixture(scope="session")
def ray_session() -> Iterator[str]:
    """The address of a Ray on this machine, started once for the whole test run and ended with it."""
    os.environ.pop("RAY_ADDRESS", None)  # never join a cluster that happens to be there
    from elias_ray.cli import connect_to_ray

    connect_to_ray()
    import ray

    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty points."""
    folder = tmp_path_factory.mktemp("data")
    examples.fasttext(folder)
    return folder


@pytest.fixture(scope="session")
def first_job(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, "subprocess.CompletedProcess[str]"]:
    """A whole run on them by jobs/train.py, with one worker on a Ray of its own: its folder, and what the job said."""
    run = tmp_path_factory.mktemp("run") / "run"
    return run, examples.job("train.py", "--data", str(data), "--run", str(run), *examples.SETTINGS)


@pytest.fixture(scope="session")
def trained(first_job: tuple[Path, "subprocess.CompletedProcess[str]"]) -> Path:
    """That run; to be copied by those who change it."""
    run, job = first_job
    assert job.returncode == 0, job.stderr
    return run
