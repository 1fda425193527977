"""What happens to one chunk of data on a worker: raw rows -> scratch file -> its shard of each split.

Two passes, because the numbers of labels and terms and their frequencies are known only when every chunk was read once.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import scipy.sparse as sp

from elias_ray.artifacts import FileEntry, Folder
from elias_ray.data import SHARD_SCHEMA, SPLITS, list_column
from elias_ray.errors import UserError
from elias_ray.features import count_terms, unit_rows, weigh
from elias_ray.formats.source import Chunk, Row, SplitName
from elias_ray.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Piece:
    """A chunk and where its rows go."""

    name: str  # of its scratch file and its shards
    chunk: Chunk
    targets: npt.NDArray[np.int8]  # (rows,), places in SPLITS
    filtered_pairs: npt.NDArray[np.int64] | None  # (pairs, 2), rows counted within the chunk


@dataclass
class Tally:
    """What is counted of a split."""

    points: int = 0
    labels: int = 0
    tokens: int = 0
    truncated: int = 0
    empty_texts: int = 0
    without_labels: int = 0

    def add(self, other: "Tally") -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True)
class ReadResult:
    """What the driver needs to know of a chunk that was read; or what is wrong with it."""

    name: str
    rows: int
    error: str = ""
    labels: Sequence[int] | Sequence[str] = ()  # of its local label numbers: ids or names
    label_counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # in training rows
    terms: Sequence[str] = ()  # of its local term numbers
    document_frequency: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # likewise
    tallies: dict[SplitName, Tally] = field(default_factory=dict)


@dataclass(frozen=True)
class Numbering:
    """What the driver tells of a chunk's local numbers."""

    name: str
    labels: npt.NDArray[np.int32]  # final id of each local label
    terms: npt.NDArray[np.int32]  # final column of each local term, -1 if it is not kept
    idf: npt.NDArray[np.float32]  # of each local term


@dataclass(frozen=True)
class Shard:
    split: SplitName
    file: FileEntry
    text_hashes: npt.NDArray[np.uint64]  # (rows,), 0 for an empty text


@dataclass(frozen=True)
class Written:
    rows: int
    shards: list[Shard]


@dataclass(frozen=True)
class ReadPiece:
    """First pass: rows checked, tokenised and counted, into a scratch file."""

    scratch: Folder
    encoder: str
    max_length: int
    given_features: bool

    def __call__(self, piece: Piece) -> ReadResult:
        try:
            rows = list(piece.chunk.read())
        except UserError as error:  # the driver tells it, without a worker's traceback
            return ReadResult(piece.name, 0, error=str(error))
        assert len(rows) == piece.chunk.num_rows, (piece.name, len(rows), piece.chunk.num_rows)
        texts = [row.text for row in rows]
        training = piece.targets == SPLITS.index("train")
        label_lengths, label_numbers, labels = _number_labels(rows)
        training_labels = label_numbers[np.repeat(training, label_lengths)]
        counts, terms = (_given_features(rows), []) if self.given_features else count_terms(texts)
        document_frequency = np.bincount(counts[training].indices, minlength=len(terms))[: len(terms)]
        tokens, token_lengths, truncated = self._tokenise(texts)
        self.scratch.write_table(
            f"{piece.name}.parquet",
            pa.table(
                {
                    "target": piece.targets,
                    "row": np.arange(len(rows)) + piece.chunk.first_row,
                    "text": pa.array(texts, pa.large_string()),
                    "input_ids": list_column(token_lengths, tokens),
                    "labels": list_column(label_lengths, label_numbers),
                    "filtered": _filtered_column(piece),
                    "term": list_column(np.diff(counts.indptr), counts.indices),
                    "count": list_column(np.diff(counts.indptr), counts.data),
                }
            ),
        )
        per_row = {
            "points": np.ones(len(rows), np.int64),
            "labels": label_lengths,
            "tokens": token_lengths,
            "truncated": truncated,
            "empty_texts": np.array([not text.strip() for text in texts]),
            "without_labels": label_lengths == 0,
        }
        tallies = {
            split: Tally(**{name: int(values[piece.targets == target].sum()) for name, values in per_row.items()})
            for target, split in enumerate(SPLITS)
        }
        label_counts = np.bincount(training_labels, minlength=len(labels))
        return ReadResult(piece.name, len(rows), "", labels, label_counts, terms, document_frequency, tallies)

    def _tokenise(self, texts: list[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Token ids one row after the other, how many each row has, and whether the text went on."""
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # Ray runs a task per CPU already
        encoded = load_tokenizer(self.encoder, self.max_length).encode_batch_fast(texts)
        lengths = np.array([len(encoding) for encoding in encoded], np.int64)
        flat = np.fromiter(chain.from_iterable(e.ids for e in encoded), np.int32, int(lengths.sum()))
        return flat, lengths, np.array([bool(encoding.overflowing) for encoding in encoded])


@dataclass(frozen=True)
class FinishPiece:
    """Second pass: the scratch file into the shards of its splits, under final label and term numbers."""

    folder: Folder
    scratch: Folder
    num_terms: int
    given_features: bool
    sublinear_tf: bool

    def __call__(self, numbering: Numbering) -> Written:
        table = self.scratch.read_table(f"{numbering.name}.parquet").combine_chunks()
        terms, counts = table["term"].combine_chunks(), table["count"].combine_chunks()
        local_width = self.num_terms if self.given_features else len(numbering.terms)
        matrix = sp.csr_matrix(
            (counts.flatten().to_numpy(), terms.flatten().to_numpy(), terms.offsets.to_numpy()),
            shape=(table.num_rows, local_width),
        )
        if self.given_features:
            tfidf = unit_rows(matrix)
        else:
            tfidf = weigh(matrix, numbering.terms, numbering.idf, self.num_terms, self.sublinear_tf)
        whole = pa.table(
            {
                **{name: table[name] for name in ("row", "text", "input_ids", "filtered")},
                "labels": _renumber(table["labels"].combine_chunks(), numbering.labels),
                "tfidf_columns": list_column(np.diff(tfidf.indptr), tfidf.indices),
                "tfidf_values": list_column(np.diff(tfidf.indptr), tfidf.data),
            }
        )
        whole = whole.select(SHARD_SCHEMA.names).cast(SHARD_SCHEMA)
        hashes = np.array([_hash(text) for text in table["text"].to_pylist()], np.uint64)
        targets = table["target"].to_numpy()
        shards = []
        for target, split in enumerate(SPLITS):
            chosen = targets == target
            if chosen.any():
                file = self.folder.write_table(f"{split}/{numbering.name}.parquet", whole.filter(pa.array(chosen)))
                shards.append(Shard(split, file, hashes[chosen]))
        return Written(table.num_rows, shards)


def _number_labels(
    rows: Sequence[Row],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[int] | list[str]]:
    """Labels per row without repeats, their local numbers one row after the other, and the label of each number."""
    numbers: dict[Any, int] = {}
    numbered = [[numbers.setdefault(label, len(numbers)) for label in dict.fromkeys(row.labels)] for row in rows]
    lengths = np.array([len(labels) for labels in numbered], np.int64)
    return lengths, np.fromiter(chain.from_iterable(numbered), np.int64, int(lengths.sum())), list(numbers)


def _renumber(labels: pa.ListArray, final_ids: npt.NDArray[np.int32]) -> pa.ListArray:
    """Local label numbers -> final ids, ascending in each row."""
    lengths = np.diff(labels.offsets.to_numpy())
    ids = final_ids[labels.flatten().to_numpy()]
    return list_column(lengths, ids[np.lexsort((ids, np.repeat(np.arange(len(lengths)), lengths)))])


def _given_features(rows: Sequence[Row]) -> sp.csr_matrix:
    parts = [row.features for row in rows if row.features is not None]
    assert len(parts) == len(rows), "a format that says num_features gives features with every row"
    columns, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    indptr = np.cumsum([0, *(len(part[0]) for part in parts)])
    matrix = sp.csr_matrix((values, columns, indptr), shape=(len(rows), int(columns.max(initial=-1)) + 1))
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def _filtered_column(piece: Piece) -> pa.ListArray:
    pairs = piece.filtered_pairs if piece.filtered_pairs is not None else np.zeros((0, 2), np.int64)
    return list_column(np.bincount(pairs[:, 0], minlength=piece.chunk.num_rows), pairs[:, 1])


def _hash(text: str) -> int:
    """Of the words alone; 0 for a text without any, which repeats nothing."""
    if not text.strip():
        return 0
    return int.from_bytes(hashlib.blake2b(" ".join(text.split()).encode(), digest_size=8).digest(), "little")
