"""What every format gives: splits, each a list of chunks of rows, and the label names.

A format first looks over its files (counts lines, checks headers, unpacks gz) and lists chunks: pieces of a split that
any worker can read alone. The rows themselves are read, and every value in them checked, where the chunk is read.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from elias_ray.errors import UserError

SplitName = Literal["train", "validation", "test"]


class Row(NamedTuple):
    text: str
    labels: Sequence[int] | Sequence[str]  # ids, or names where the source has no list of labels
    features: tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]] | None = None  # columns, values


@dataclass(frozen=True)
class Chunk:
    """Rows `first_row` ... of a split; `read` is picklable and needs nothing else."""

    first_row: int
    num_rows: int
    read: Callable[[], Iterator[Row]]


@dataclass(frozen=True)
class Split:
    chunks: list[Chunk]
    filtered_pairs: npt.NDArray[np.int64] | None = None  # (pairs, 2): row, label whose score does not count

    @property
    def num_rows(self) -> int:
        return sum(chunk.num_rows for chunk in self.chunks)


@dataclass(frozen=True)
class Source:
    format: str
    splits: dict[SplitName, Split]
    label_names: list[str] | None  # None: the rows carry names
    num_features: int | None = None  # columns of the features that come with the rows


def chunk_up(parts: Iterable[tuple[int, Callable[[], Iterator[Row]]]]) -> list[Chunk]:
    """Chunks from (number of rows, reader) in the order of the rows."""
    chunks: list[Chunk] = []
    first_row = 0
    for num_rows, read in parts:
        chunks.append(Chunk(first_row, num_rows, read))
        first_row += num_rows
    return chunks


def require_same_rows(first: str, first_rows: int, second: str, second_rows: int) -> None:
    if first_rows != second_rows:
        shorter = min(first_rows, second_rows)
        raise UserError(
            f"{first} has {first_rows} rows but {second} has {second_rows}; they must match line by line "
            f"(the first without a partner is line {shorter + 1})"
        )
