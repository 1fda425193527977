"""Fixtures shared by all tests."""

import os
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
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory, ray_session: str) -> Path:
    """A whole run on them, by one worker; to be copied by those who change it."""
    from elias_ray import pipeline
    from elias_ray.artifacts import Folder, record_config

    run, config = tmp_path_factory.mktemp("run") / "run", examples.settings(data)
    record_config(Folder.at(run), config)
    pipeline.train(Folder.at(run), config)
    return run
