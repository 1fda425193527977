"""An ensemble: members side by side in one run, one score."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import elias_ray
from elias_ray import pipeline
from elias_ray.artifacts import CONFIG, CONFIG_MARK, Folder
from tests import examples
from tests.examples import settings

pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.timeout(300)]


def rows(folder: Path) -> list[dict[int, float]]:
    tables = [pq.read_table(file).to_pylist() for file in sorted(folder.glob("*.parquet"))]
    return [dict(zip(row["labels"], row["scores"], strict=True)) for table in tables for row in table]


def test_three_members_of_which_two_train_at_once(trained: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)  # the first is trained
    first = (run / "member1/stage2/model/manifest.json").read_bytes()
    config = settings(data, "ensemble.members=3", "resources.members_at_once=2")
    (run / CONFIG).write_text(f"{CONFIG_MARK}\n{config.to_yaml()}")
    pipeline.train(Folder.at(run), config)
    assert (run / "member1/stage2/model/manifest.json").read_bytes() == first
    clusters = [
        pq.read_table(run / f"member{number}/clusters/clusters.parquet")["cluster"].to_pylist() for number in (1, 2, 3)
    ]
    assert clusters[1] != clusters[2]
    united = rows(run / "ensemble")
    members = [rows(run / f"member{number}/calibration/predictions/test") for number in (1, 2, 3)]
    assert len(united) == 10
    for point, found in enumerate(united):
        labels = {label for member in members for label in member[point]}
        assert found == pytest.approx(
            {label: np.mean([member[point].get(label, 0) for member in members]) for label in labels}, rel=1e-5
        )
        assert list(found.values()) == sorted(found.values(), reverse=True)
    assert list(json.loads((run / "metrics.json").read_text())) == [
        *("stage1", "stage2", "ranker", "calibrated", "ensemble")
    ]
    names = elias_ray.load(run).predict([point.text for point in examples.TEST], top_k=8, explain=True)
    for predictions, found in zip(names, united, strict=True):
        assert [prediction.label for prediction in predictions] == [examples.LABELS[label] for label in found]
        assert {path.member for prediction in predictions for path in prediction.paths or ()} == {1, 2, 3}
