"""Fixtures shared by all tests."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def ray_session() -> Iterator[str]:
    """The address of a Ray on this machine, started once for the whole test run and ended with it."""
    os.environ.pop("RAY_ADDRESS", None)  # never join a cluster that happens to be there
    from elias_ray.cli import connect_to_ray

    connect_to_ray()
    import ray

    yield ray.get_runtime_context().gcs_address
    ray.shutdown()
