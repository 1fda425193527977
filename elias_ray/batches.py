"""From shards of tokens or embeddings to the batches of an epoch, in an order that (seed, epoch) alone decide.

An epoch goes through its shards in a shuffled order, a window of several at a time. Within a window all rows are
shuffled, laid out so that rows of similar length share a batch (padding is wasted encoder time), and the batches are
shuffled. Every worker takes its part of every batch, so all of them make the same number of steps, and the batches are
the same ones for any number of workers. A window's last batch is filled up with rows from its beginning.

Legend: B points of a worker's part of a batch, T tokens (padded), D embedding size, P positive labels (padded).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from elias_ray.artifacts import Folder
from elias_ray.data import read_vectors
from elias_ray.metrics import PAD
from elias_ray.padding import pad, pad_tokens
from elias_ray.streaming import stream
from elias_ray.workers import Workers

SHARDS_PER_WINDOW = 8
WINDOWS_AT_ONCE = 2  # being read for a worker; a window may take half a GB
BATCHES_SORTED_TOGETHER = 50
READER_CPUS = 0.25  # training workers hold most CPUs; a whole one might never be free

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """A worker's part of a batch: of what the encoder reads, or of what it once made of it."""

    rows_B: Tensor  # numbers of the points in the user's file
    positives_BP: Tensor  # PAD where a point has fewer
    input_ids_BT: Tensor | None = None
    attention_mask_BT: Tensor | None = None
    embedding_BD: Tensor | None = None

    def to(self, device: torch.device) -> "Batch":
        moved = {name: value.to(device) for name, value in vars(self).items() if value is not None}
        return Batch(**moved)


@dataclass(frozen=True)
class Window:
    """Some shards of an epoch and the seed of what happens to their rows."""

    shards: list[str]
    seed: tuple[int, int, int]  # seed, epoch, number of the window


def windows_of_epoch(shards: list[str], seed: int, epoch: int) -> list[Window]:
    """The shards in the order of this epoch, SHARDS_PER_WINDOW at a time."""
    order = np.random.default_rng((seed, epoch)).permutation(len(shards))
    return [
        Window([shards[i] for i in order[start : start + SHARDS_PER_WINDOW]], (seed, epoch, number))
        for number, start in enumerate(range(0, len(order), SHARDS_PER_WINDOW))
    ]


def batches_of_window(lengths: npt.NDArray[np.int64], batch_size: int, seed: tuple[int, int, int]) -> list[Places]:
    """Places of rows, `batch_size` a batch; `lengths` are the tokens of each row."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(lengths))
    order = np.resize(order, -(-len(order) // batch_size) * batch_size)  # repeats from the beginning
    sorted_parts = []
    for start in range(0, len(order), BATCHES_SORTED_TOGETHER * batch_size):
        part = order[start : start + BATCHES_SORTED_TOGETHER * batch_size]
        sorted_parts.append(part[np.argsort(lengths[part], kind="stable")])
    batches = np.concatenate(sorted_parts).reshape(-1, batch_size)
    return list(batches[rng.permutation(len(batches))])


def steps_of_epoch(rows_of_shards: dict[str, int], batch_size: int, seed: int, epoch: int) -> int:
    windows = windows_of_epoch(sorted(rows_of_shards), seed, epoch)
    return sum(steps_of_window(window, rows_of_shards, batch_size) for window in windows)


def steps_of_window(window: Window, rows_of_shards: dict[str, int], batch_size: int) -> int:
    return -(-sum(rows_of_shards[shard] for shard in window.shards) // batch_size)


def stream_epoch(
    folder: Folder,
    rows_of_shards: dict[str, int],
    batch_size: int,
    workers: Workers,
    seed: int,
    epoch: int,
    embeddings: Folder | None = None,
    skip: int = 0,
) -> Iterator[Batch]:
    """This worker's part of every batch of the epoch but the first `skip`; Ray Data reads the next windows meanwhile.

    With `embeddings`, which has a shard of the same name for each, batches carry these instead of tokens.
    """
    windows = windows_of_epoch(sorted(rows_of_shards), seed, epoch)
    while windows and skip >= (steps := steps_of_window(windows[0], rows_of_shards, batch_size)):
        windows, skip = windows[1:], skip - steps
    if not windows:
        return
    part = workers.block(batch_size)
    read = partial(read_window, folder, batch_size=batch_size, part=part, embeddings=embeddings)
    for batches in stream(windows, read, ordered=True, cpus_per_task=READER_CPUS, tasks_at_once=WINDOWS_AT_ONCE):
        yield from batches[skip:]
        skip = 0


def read_window(
    folder: Folder, window: Window, batch_size: int, part: range, embeddings: Folder | None = None
) -> list[Batch]:
    """The `part` of each batch of a window.

    Tokens are padded to the part's own longest row; positives to the whole batch's, since workers gather them.
    """
    columns = ["row", "labels"] if embeddings else ["row", "labels", "input_ids"]
    table = pa.concat_tables([folder.read_table(shard, columns) for shard in window.shards])
    rows, labels = table["row"].to_numpy(), table["labels"].to_pylist()
    tokens = [] if embeddings else table["input_ids"].to_pylist()
    vectors = np.concatenate([read_vectors(embeddings, shard) for shard in window.shards]) if embeddings else None
    lengths = np.zeros(len(rows), np.int64) if embeddings else np.array([len(ids) for ids in tokens], np.int64)
    batches = []
    for places in batches_of_window(lengths, batch_size, window.seed):
        mine = places[part.start : part.stop]
        positives_BP = pad([labels[place] for place in places], PAD)[part.start : part.stop].clone()
        rows_B = torch.from_numpy(rows[mine])
        if vectors is not None:
            batches.append(Batch(rows_B, positives_BP, embedding_BD=torch.from_numpy(vectors[mine])))
        else:
            tokens_BT = pad_tokens([tokens[place] for place in mine])
            batches.append(Batch(rows_B, positives_BP, *tokens_BT))
    return batches
