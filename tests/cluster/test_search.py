"""A search that is killed and started again, and stops what is poor; its best trial taken to the end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import ROOT, SETTINGS, job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def test_a_killed_search_goes_on(much_data: Path, tmp_path: Path) -> None:
    run, space = tmp_path / "run", tmp_path / "space.yaml"
    space.write_text("stage2.lr_classifiers: [0.01, 1e-9, 0.02]")
    arguments = ["--data", str(much_data), "--run", str(run), "--space", str(space), "--metric", "p@1", *SETTINGS]
    search = subprocess.Popen(
        [sys.executable, str(ROOT / "jobs/tune.py"), *arguments],
        **{"env": {**os.environ, "RAY_ADDRESS": ""}, "text": True, "stdout": subprocess.PIPE},  # type: ignore[call-overload]
    )
    file = f"{run}/trials/lr=1e-09/config.yaml"  # the second has begun
    subprocess.run(
        [sys.executable, "-m", "tests.killer", file, "jobs/tune.py", str(os.getpid())],
        **{"check": True, "cwd": ROOT, "stdout": subprocess.DEVNULL},  # type: ignore[call-overload]
    )
    said, _ = search.communicate(timeout=60)
    assert search.returncode == -signal.SIGKILL
    assert "lr=0.01: done in" in said
    again = job("tune.py", *arguments)
    assert again.returncode == 0, again.stderr
    assert "trial 1 of 3" not in again.stdout, "done before"
    assert "lr=1e-09: stopped, since others are better" in again.stdout
    assert {file.stem: json.loads(file.read_text())["state"] for file in (run / "reports").iterdir()} == {
        "lr=0.01": "done",
        "lr=1e-09": "stopped",
        "lr=0.02": "done",
    }
    command = again.stdout.split("python jobs/train.py ")[1].split()
    through = job("train.py", *command)
    assert through.returncode == 0, through.stderr
    assert "stage 2: done before" not in through.stdout, "its predictions were missing"
    assert "calibrated" in json.loads(Path(command[-1], "metrics.json").read_text())
