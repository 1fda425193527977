"""Embedding the points of a split takes longest of all on a CPU: what is done of it stays done."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch

from elias_ray import embeddings
from elias_ray.artifacts import Folder, committed
from elias_ray.data import Prepared, read_vectors
from elias_ray.workers import alone

SHARDS = {f"train/{number}.parquet": number + 2 for number in range(3)}


class Phi:
    """Every token's own number in place of a vector; fails at one of its calls."""

    def __init__(self, fails_at: int) -> None:
        self.calls, self.fails_at = 0, fails_at

    def __call__(self, encoder: Any, tokens: list[list[int]], *_: Any) -> npt.NDArray[np.float32]:
        self.calls += 1
        if self.calls == self.fails_at:
            raise RuntimeError("killed")
        return np.array(tokens, np.float32)


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    folder = Folder.at(tmp_path / "prepare")
    folder.create()
    for shard, rows in SHARDS.items():
        folder.write_table(shard, pa.table({"input_ids": [[rows, row] for row in range(rows)]}))
    return Prepared(folder, {"splits": {"train": {"points": 9, "shards": SHARDS}}})


def embed(prepared: Prepared, folder: Folder, made_from: str) -> None:
    worker: Any = SimpleNamespace(workers=alone(), device=torch.device("cpu"), say=lambda _: None)
    encoder: Any = None
    embeddings.embed(worker, encoder, prepared, "train", folder, made_from)


def test_a_killed_one_goes_on_behind_its_last_shard(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder.at(tmp_path / "embeddings")
    killed, second, third, fourth = Phi(3), Phi(0), Phi(0), Phi(2)
    monkeypatch.setattr(embeddings, "phi", killed)
    with pytest.raises(RuntimeError, match="killed"):
        embed(prepared, folder, "some data")
    assert committed(folder) is None
    monkeypatch.setattr(embeddings, "phi", second)
    embed(prepared, folder, "some data")
    assert second.calls == 1
    manifest = committed(folder, "some data")
    assert manifest is not None
    assert set(manifest.files) == set(folder.files()) - {"manifest.json"} == {"0.parquet", "1.parquet", "2.parquet"}
    for name, entry in manifest.files.items():
        assert folder.checksum(name) == entry.sha256
    for shard, rows in SHARDS.items():
        assert read_vectors(folder, shard).tolist() == [[rows, row] for row in range(rows)]
    monkeypatch.setattr(embeddings, "phi", third)
    embed(prepared, folder, "some data")
    assert third.calls == 0
    monkeypatch.setattr(embeddings, "phi", fourth)
    with pytest.raises(RuntimeError, match="killed"):
        embed(prepared, folder, "other data")
    monkeypatch.setattr(embeddings, "phi", Phi(3))
    with pytest.raises(RuntimeError, match="killed"):  # nothing of the other attempt is taken
        embed(prepared, folder, "some data")
