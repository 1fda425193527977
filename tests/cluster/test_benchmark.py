"""ELIAS beside peers that need nothing installed, on the smallest of runs."""

import json
import shutil
from pathlib import Path

import pytest

from tests.examples import SETTINGS, job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_every_system_is_a_row_and_one_that_is_stopped_says_so(trained: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    arguments = ["--data", str(data), "--run", str(run), *SETTINGS]
    hurried = job("benchmark.py", *arguments, "--peers", "ova", "--budget", "0.001")
    assert hurried.returncode == 0, hurried.stderr
    result = json.loads((run / "benchmark.json").read_text())
    assert list(result) == ["ova", "elias", "elias++"]
    assert result["ova"]["failed"] == "stopped after the 0.001 minutes of --budget"
    done = job("benchmark.py", *arguments, "--peers", "xr-linear,ova")
    assert done.returncode == 0, done.stderr
    assert "ELIAS ..." not in done.stdout, "measured before"
    result = json.loads((run / "benchmark.json").read_text())
    assert list(result) == ["xr-linear", "ova", "elias", "elias++"]
    for row in result.values():
        assert 0 < row["P@1"] <= 100
        assert row["prediction_ms"] > 0
        assert row["model_bytes"] > 0
    assert (run / "benchmark.md").read_text() in done.stdout
    refused = job("benchmark.py", *arguments, "--peers", "xr-linear,annoy")
    assert "'annoy' is not one of xr-linear, xr-transformer, omikuji, ova" in refused.stderr
