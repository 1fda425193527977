"""The jobs as a user runs them, in processes of their own."""

import json
import re
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from elias_ray.config import Config, flatten
from elias_ray.metrics import METRIC_NAMES
from tests import examples
from tests.examples import SETTINGS, job


@pytest.mark.parametrize("name", ["prepare.py", "train.py"])
@pytest.mark.timeout(60)
def test_help_names_every_key(name: str) -> None:
    done = job(name, "--help")
    assert done.returncode == 0
    for key in flatten(Config()):
        assert f"{key}=" in done.stdout


@pytest.mark.timeout(60)
def test_show_config() -> None:
    done = job("train.py", "--preset", "amazon-3m", "--show-config", "search.beam=7")
    assert done.returncode == 0
    assert "beam: 7" in done.stdout
    assert "count: 32768" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--run", "RUN", "search.beam=0"], "search.beam=0"),
        (["--preset", "none"], "no preset 'none'"),
        ([], "--run DIR is missing"),
    ],
)
@pytest.mark.timeout(60)
def test_a_config_error_is_told_at_once(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = job("train.py", *(a.replace("RUN", str(tmp_path / "run")) for a in arguments))
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.timeout(60)
def test_no_ray_at_the_address(tmp_path: Path) -> None:
    done = job("prepare.py", "--data", "apidocs", "--run", str(tmp_path / "run"), ray_address="127.0.0.1:1")
    assert done.returncode == 1
    assert "RAY_ADDRESS=127.0.0.1:1: nothing answers there" in done.stderr.splitlines()[-1]


@pytest.mark.timeout(400)
def test_train_from_raw_data_to_the_table_and_again(
    first_job: tuple[Path, subprocess.CompletedProcess[str]], data: Path, ray_session: str
) -> None:
    run, first = first_job
    arguments = ("--data", str(data), "--run", str(run), *SETTINGS)
    assert first.returncode == 0, first.stderr
    assert "is fastText" in first.stdout
    assert "points without labels" in first.stdout
    assert "clusters: 4 of 2 to 2 labels" in first.stdout
    assert sorted(path.name for path in run.iterdir()) == [
        *("config.yaml", "embeddings", "hardware.json", "member1", "metrics.json", "metrics_by_decile.json"),
        *("prepare", "report", "times.json"),
    ]
    assert sorted(path.name for path in (run / "member1").iterdir()) == [
        *("adjacency", "calibration", "clusters", "ranker", "stage1", "stage2", "tensorboard", "times.json")
    ]
    clusters = pq.read_table(run / "member1/clusters/clusters.parquet")["cluster"].to_pylist()
    assert sorted(clusters) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert "stage 1: memory of each of 1 workers" in first.stdout
    for stage in (1, 2):
        pattern = rf"stage {stage}, frozen epoch 2/2: loss [\d.]+, [\d,]+ samples/s, validation P@1 "
        assert re.search(pattern, first.stdout)
    figures = json.loads((run / "metrics.json").read_text())
    titles = {"stage1": "stage 1", "stage2": "+ stage 2", "ranker": "+ ranker", "calibrated": "+ calibration"}
    assert list(figures) == list(titles)
    lines = first.stdout.splitlines()
    table = next(number for number, line in enumerate(lines) if line.split() == METRIC_NAMES)
    for line, (name, figure) in zip(lines[table + 1 :], figures.items(), strict=False):
        assert line.startswith(titles[name])
        assert list(figure) == METRIC_NAMES
        assert [float(shown) for shown in line.removeprefix(titles[name]).split()] == pytest.approx(
            list(figure.values()), abs=0.0051
        )
    assert (
        len(re.findall(r"^  ([\d. ]{6})  (apple|banana|cherry|date|elder|fig|grape|hazel)", first.stdout, re.M)) == 15
    )
    assert lines[-1] == f"what was learned: {run}/report/index.html"

    again = job("train.py", *arguments, ray_address=ray_session)
    assert again.returncode == 0
    assert "prepare: done before" in again.stdout
    assert "clusters: done before" in again.stdout
    assert "stage 1: done before" in again.stdout
    assert "adjacency: done before" in again.stdout
    assert "stage 2: done before" in again.stdout
    assert "ranker: done before" in again.stdout
    assert "calibration: done before" in again.stdout
    assert again.stdout.splitlines()[-20:] == lines[-20:]

    other = job("train.py", *arguments, "search.alpha=3")
    assert other.returncode == 1
    assert "search.alpha: 10.0 -> 3" in other.stderr


@pytest.mark.timeout(200)
def test_bad_data_ends_with_its_place_and_no_traceback(tmp_path: Path, ray_session: str) -> None:
    examples.text2text(tmp_path / "data")
    lines = (tmp_path / "data/train.txt").read_text().splitlines()
    lines[4] = "99\ttext"
    examples.write_text(tmp_path / "data/train.txt", lines)
    done = job("prepare.py", "--data", str(tmp_path / "data"), "--run", str(tmp_path / "run"), ray_address=ray_session)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "error: train.txt:5: label 99 is out of range, allowed 0 to 7"
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run/prepare").exists()
