"""Fixtures of the tests that take longer."""

from pathlib import Path

import pytest

from tests.examples import names, points, write_text


@pytest.fixture(scope="session")
def much_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six hundred points."""
    folder = tmp_path_factory.mktemp("data")
    lines = [" ".join([*(f"__label__{name}" for name in names(p)), p.text]) for p in points(600, seed=3)]
    write_text(folder / "fruit.train", lines)
    return folder
