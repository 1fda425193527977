"""The batches of an epoch: every row, the same for any number of workers, grouped by length."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elias_ray.artifacts import Folder
from elias_ray.batches import Batch, batches_of_window, steps_of_epoch, stream_epoch, windows_of_epoch
from elias_ray.embeddings import vector_table
from elias_ray.metrics import PAD
from elias_ray.padding import pad
from elias_ray.workers import Workers


@settings(deadline=None)
@given(
    rows=st.integers(1, 500), batch_size=st.integers(1, 64), seed=st.integers(0, 2**31 - 1), epoch=st.integers(0, 100)
)
def test_every_row_comes_and_few_come_twice(rows: int, batch_size: int, seed: int, epoch: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, 50, rows)
    batches = batches_of_window(lengths, batch_size, (seed, epoch, 0))
    again = batches_of_window(lengths, batch_size, (seed, epoch, 0))
    assert np.array_equal(batches, again)
    assert all(len(batch) == batch_size for batch in batches)
    counts = np.bincount(np.concatenate(batches), minlength=rows)
    assert counts.min() >= 1
    assert counts.sum() - rows < batch_size


def test_epochs_and_seeds_differ() -> None:
    lengths = np.arange(300) % 17
    orders = [
        np.concatenate(batches_of_window(lengths, 10, (s, e, w)))
        for s, e, w in ((0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 0, 1))
    ]
    for i, one in enumerate(orders):
        assert not any(np.array_equal(one, other) for other in orders[:i])
    shards = [str(n) for n in range(30)]
    assert windows_of_epoch(shards, 0, 0) == windows_of_epoch(shards, 0, 0) != windows_of_epoch(shards, 0, 1)
    assert sorted(s for window in windows_of_epoch(shards, 0, 3) for s in window.shards) == sorted(shards)


def test_rows_of_a_batch_are_of_similar_length() -> None:
    lengths = np.random.default_rng(0).geometric(0.05, 5000)

    def padded(batches: list[np.ndarray]) -> int:
        return int(sum(lengths[batch].max() * len(batch) for batch in batches))

    grouped = padded(batches_of_window(lengths, 50, (0, 0, 0)))
    shuffled = padded(list(np.random.default_rng(0).permutation(5000).reshape(-1, 50)))
    assert grouped < 1.2 * lengths.sum() < 0.5 * shuffled


@pytest.fixture
def shards(tmp_path: Path) -> tuple[Folder, dict[str, int]]:
    """Nineteen shards of unequal size; the first token of a row is its number, and so are its labels' sum."""
    folder, rows, first = Folder.at(tmp_path), {}, 1
    rng = np.random.default_rng(0)
    for number in range(19):
        count = int(rng.integers(3, 9))
        ids = [[n, *[7] * int(rng.integers(0, 6))] for n in range(first, first + count)]
        labels = [[] if n % 5 == 0 else [n] if n % 2 else [n - 1, 1] for n in range(first, first + count)]
        table = pa.table(
            {
                "row": pa.array(range(first, first + count), pa.int64()),
                "input_ids": pa.array(ids, pa.list_(pa.int32())),
                "labels": pa.array(labels, pa.list_(pa.int32())),
            }
        )
        folder.write_table(f"shard-{number:02d}.parquet", table)
        vectors = np.repeat(np.arange(first, first + count, dtype=np.float32)[:, None], 4, axis=1)
        (folder / "embeddings").write_table(f"shard-{number:02d}.parquet", vector_table(vectors))
        rows[f"shard-{number:02d}.parquet"] = count
        first += count
    return folder, rows


def first_tokens(batch: Batch) -> list[int]:
    assert batch.input_ids_BT is not None
    return batch.input_ids_BT[:, 0].tolist()


@pytest.mark.usefixtures("ray_session")
@pytest.mark.timeout(120)
def test_workers_share_the_same_batches(shards: tuple[Folder, dict[str, int]]) -> None:
    folder, rows = shards

    def batches(workers: Workers, epoch: int, skip: int = 0) -> list[Batch]:
        return list(stream_epoch(folder, rows, 6, workers, seed=3, epoch=epoch, skip=skip))

    whole = batches(Workers(0, 1), epoch=2)
    assert len(whole) == steps_of_epoch(rows, 6, seed=3, epoch=2)
    numbers = [first_tokens(batch) for batch in whole]
    assert numbers == [batch.rows_B.tolist() for batch in whole]
    assert {n for batch in numbers for n in batch} == set(range(1, sum(rows.values()) + 1))
    for size in (2, 3):
        parts = [batches(Workers(rank, size), epoch=2) for rank in range(size)]
        assert {len(part) for part in parts} == {len(whole)}
        shared = [[n for b in step for n in first_tokens(b)] for step in zip(*parts, strict=True)]
        assert shared == numbers
        for step in zip(*parts, strict=True):  # they are gathered over workers, which takes one width
            assert len({batch.positives_BP.shape for batch in step}) == 1
    for skip in (1, len(whole) - 1, len(whole)):  # within the first window, in the last, all
        assert [first_tokens(batch) for batch in batches(Workers(0, 1), epoch=2, skip=skip)] == numbers[skip:]
    for batch in whole:
        assert batch.input_ids_BT is not None
        assert batch.attention_mask_BT is not None
        assert torch.equal(batch.attention_mask_BT, torch.ne(batch.input_ids_BT, 0).long())
        for n, positives in zip(first_tokens(batch), batch.positives_BP.tolist(), strict=True):
            assert sum(p for p in positives if p != PAD) == (0 if n % 5 == 0 else n)
    cached = stream_epoch(folder, rows, 6, Workers(0, 1), seed=3, epoch=2, embeddings=folder / "embeddings")
    seen = set()
    for batch in cached:
        assert batch.input_ids_BT is None
        assert batch.embedding_BD is not None
        assert torch.equal(batch.embedding_BD, batch.rows_B.float()[:, None].expand(-1, 4))
        seen.update(batch.rows_B.tolist())
    assert seen == set(range(1, sum(rows.values()) + 1))
    other = [first_tokens(batch) for batch in batches(Workers(0, 1), epoch=3)]
    assert other != numbers


def test_padding() -> None:
    assert pad([[1, 2], [], [3]], PAD).tolist() == [[1, 2], [PAD, PAD], [3, PAD]]
    assert pad([[], []], 0).tolist() == [[0], [0]]
