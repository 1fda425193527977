"""prepare and clusters on the real datasets; off by default (see README)."""

import os
from pathlib import Path

import numpy as np
import pytest

from elias_ray.artifacts import Folder
from elias_ray.clusters import make_clusters, read_clusters
from elias_ray.config import load_config
from elias_ray.prepare import prepare

pytestmark = [pytest.mark.data, pytest.mark.usefixtures("ray_session"), pytest.mark.timeout(600)]

# name: train, validation, test, labels; overrides
DATASETS = {
    "yso-mini": ((45_000, 5_000, 10_000, 15_861), ["data.homonyms=number"]),
    "eurlex57k-128w": ((45_000, 6_000, 6_000, 4_108), []),
    "commit-files": ((293_445, 5_000, 73_831, 93_627), []),
}


@pytest.mark.parametrize("name", DATASETS)
def test_real_dataset(name: str, tmp_path: Path) -> None:
    (train, validation, test, labels), overrides = DATASETS[name]
    config = load_config(overrides=[f"data.path={Path(os.environ['ELIAS_RAY_DATA']) / name}", *overrides])
    prepared = prepare(Folder.at(tmp_path), config)
    assert [prepared.num_rows(split) for split in ("train", "validation", "test")] == [train, validation, test]
    assert prepared.num_labels == len(set(prepared.label_names)) == labels
    tfidf = prepared.tfidf("train")
    norms = np.sqrt(np.asarray(tfidf.multiply(tfidf).sum(axis=1)).ravel())
    assert ((abs(norms - 1) < 1e-5) | (norms == 0)).all()
    frequency = np.asarray(prepared.labels("train").sum(axis=0)).ravel()
    assert (frequency == prepared.label_frequency_L).all()
    folder = Folder.at(tmp_path) / "clusters"
    make_clusters(folder, prepared, config, seed=0)
    sizes = np.bincount(read_clusters(folder))
    assert sizes.max() - sizes.min() <= 1
