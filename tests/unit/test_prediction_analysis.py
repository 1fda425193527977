"""Recall curves, samples and errors of predictions that are small enough to count by hand."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp

from elias_ray.artifacts import Folder
from elias_ray.config import Metrics as MetricSettings
from elias_ray.data import SHARD_SCHEMA, Prepared
from elias_ray.metrics import PAD
from elias_ray.prediction_analysis import counted, is_in, recall, sample_of, surest_errors
from elias_ray.predictions import Lists, Predicted, evaluate, write_predictions
from elias_ray.projection import mean_cosine
from elias_ray.report_pictures import duration

SHARD = "test/test-000000.parquet"
NAMES = ["a", "b", "c", "d", "e"]
FREQUENCY = [50, 30, 10, 10, 1]


def write(folder: Folder, texts: list[str], labels: list[list[int]], filtered: list[list[int]]) -> Prepared:
    rows = len(texts)
    nothing: list[list[int]] = [[]] * rows
    columns = [list(range(rows)), texts, nothing, labels, filtered, nothing, nothing]
    folder.create()
    folder.write_table(SHARD, pa.table(columns, schema=SHARD_SCHEMA))
    folder.write_table("labels.parquet", pa.table({"name": NAMES, "frequency": FREQUENCY}))
    splits = {"train": {"points": 101, "shards": {}}, "test": {"points": rows, "shards": {SHARD: rows}}}
    return Prepared(folder, {"num_labels": 5, "num_terms": 0, "splits": splits})


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    """Four points: the first has labels a and b, the second c, the third none, the fourth d and e."""
    texts = ["one", "two " * 300, "three", "four"]
    return write(Folder.at(tmp_path / "prepare"), texts, [[0, 1], [2], [], [3, 4]], [[], [0], [], []])


@pytest.fixture
def predictions(tmp_path: Path, prepared: Prepared) -> Folder:
    folder = Folder.at(tmp_path / "predictions")
    folder.create()
    labels = np.array([2, 0, 0, 1, 2, 1, 4, 0, 1], np.int32)  # row by row: c a, a b c (a does not count), b, e a b
    scores = np.array([0.9, 0.5, 0.8, 0.7, 0.6, 0.99, 0.4, 0.3, 0.2], np.float32)
    write_predictions(folder, prepared, SHARD, Lists(np.array([2, 3, 1, 3]), labels, {"scores": scores}))
    return folder


def test_recall_by_size_and_decile(prepared: Prepared, predictions: Folder) -> None:
    found = recall(prepared, predictions, prepared.shards("test"))
    # Of three points with labels: at 1 half of the fourth's, at 2 half of the first's too and the second's one.
    assert found["at"][:3] == pytest.approx([100 / 6, 100 / 6 + 100 / 6 + 100 / 3, 200 / 3])
    assert len(found["at"]) == 100
    assert found["at"][99] == pytest.approx(sum(found["by_decile"]))
    assert found["by_decile"][0] == pytest.approx(100 / 6)  # label a


def test_recall_is_that_of_the_metrics(prepared: Prepared, predictions: Folder) -> None:
    found = recall(prepared, predictions, prepared.shards("test"))
    metrics = evaluate(prepared, predictions, "test", MetricSettings())
    for k in (10, 20, 100):
        assert found["at"][k - 1] == pytest.approx(metrics.result()[f"R@{k}"])
    assert found["by_decile"] == pytest.approx(metrics.by_decile()["R@100"])


def test_filtered_pairs_do_not_count() -> None:
    predicted = Predicted(np.array([[1, 2], [2, PAD]], np.int32), np.array([[0.5, 0.4], [0.3, 0]], np.float32))
    filtered = sp.csr_matrix(np.array([[0, 1, 0], [0, 1, 0]]))
    assert counted(predicted, filtered).labels_NK.tolist() == [[PAD, 2], [2, PAD]]
    assert not is_in(filtered, np.full((2, 2), PAD, np.int32)).any()


def test_the_surest_errors(prepared: Prepared, predictions: Folder) -> None:
    found = surest_errors(prepared, predictions, prepared.shards("test"), NAMES.__getitem__)
    # The third has no labels, and the best label of the fourth is true.
    assert [error["score"] for error in found] == pytest.approx([0.9, 0.7])
    assert found[0]["text"] == "one"
    assert [(p["label"], p["true"]) for p in found[0]["predicted"]] == [("c", False), ("a", True)]
    assert found[0]["true"] == ["a", "b"]
    assert found[1]["text"].endswith("…")
    assert len(found[1]["text"]) == 401


def test_samples_are_whole_shards_and_the_same_every_time() -> None:
    shards = {f"shard{number}": 10 for number in range(20)}
    assert sample_of(shards, 200, seed=0) == shards
    sample = sample_of(shards, 45, seed=0)
    assert len(sample) == 5
    assert list(sample) == [name for name in shards if name in sample]
    assert sample == sample_of(shards, 45, seed=0)
    assert sample != sample_of(shards, 45, seed=1)


def test_mean_cosine() -> None:
    assert mean_cosine(np.array([[1, 0], [0, 1], [1, 0]], np.float32)) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 s"), (3.21, "3.2 s"), (42.4, "42 s"), (90, "1.5 min"), (851, "14 min"), (9000, "2.5 h")],
)
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
