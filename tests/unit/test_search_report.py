"""The table, the CSV and the pictures of a search."""

import csv
from pathlib import Path

import numpy as np
import pytest
from matplotlib import image

from elias_ray.artifacts import Folder
from elias_ray.config import load_config, parse_config
from elias_ray.errors import UserError
from elias_ray.journal import EPOCHS
from elias_ray.metrics import METRIC_NAMES
from elias_ray.search import Record
from elias_ray.search_report import report
from elias_ray.space import Space, Trial, read_space


def records(trials: list[Trial], figures: list[float]) -> dict[str, Record]:
    made = {}
    for trial, figure in zip(trials, figures, strict=True):
        last = {EPOCHS: 6, **{name: figure + place for place, name in enumerate(METRIC_NAMES)}}
        made[trial.name] = Record([last], "done", seconds=10.0)
    return made


def searched(space: str, samples: int | None = None) -> tuple[Space, list[Trial]]:
    found = read_space(space)
    return found, found.trials(load_config(), samples)


def test_best_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space, trials = searched("beta")
    known = records(trials, [20, 22, 99])  # 150, 75, 300
    known["beta=300"].state, known["beta=300"].reports[0][EPOCHS] = "stopped", 4
    report(Folder.at(tmp_path), space, trials, known, "nDCG@5")
    said = capsys.readouterr().out.splitlines()
    table = [line.split() for line in said if line.startswith("beta")]
    assert [row[0] for row in table] == ["beta=75", "beta=150", "beta=300"]  # one that was stopped cannot win
    assert table[0][1:] == ["27.00", "22.00", "24.00", "33.00", "6.00", "10.00"]
    assert "best: beta=75, nDCG@5 27.00, +2.00 over 25.00 as given" in said
    with (tmp_path / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["search.beta"], row["state"], row["nDCG@5"]) for row in rows] == [
        ("75.0", "done", "27"),
        ("150.0", "done", "25"),
        ("300.0", "stopped", "104"),
    ]
    best = parse_config((tmp_path / "best.yaml").read_text(), "best.yaml")
    assert best == trials[1].config
    assert best.search.beta == 75


@pytest.mark.parametrize(("space", "samples"), [("lambda", None), ("alpha,beta", None), ("alpha,beta,lr,beam", 20)])
def test_every_number_of_dimensions_has_a_picture(space: str, samples: int | None, tmp_path: Path) -> None:
    dimensions, trials = searched(space, samples)
    known = records(trials, np.random.default_rng(0).uniform(20, 30, len(trials)).tolist())
    for trial in trials[-2:]:
        known[trial.name].state = "stopped"
    report(Folder.at(tmp_path), dimensions, trials, known, "nDCG@5")
    pixels = image.imread(tmp_path / "search.png")
    assert pixels.std() > 0.05


def test_no_trial_came_to_its_end(tmp_path: Path) -> None:
    space, trials = searched("beta")
    known = {trial.name: Record([], "failed", "a worker has too little memory") for trial in trials}
    with pytest.raises(UserError, match="no trial came to its end; beta=150 failed: a worker has too little memory"):
        report(Folder.at(tmp_path), space, trials, known, "nDCG@5")
