"""The Extreme Classification Repository's sparse text, 'labels column:value ...', beside the raw texts."""

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from elias_ray.config import Config
from elias_ray.errors import UserError
from elias_ray.formats.data_folder import DataFolder, LineRange
from elias_ray.formats.label_files import read_filtered_pairs, read_label_names
from elias_ray.formats.source import Row, Source, Split, SplitName, chunk_up, require_same_rows
from elias_ray.formats.values import clip, parse_id, parse_number

NAME = "XC sparse text"
LOOKED_FOR = (
    "trn_X_Y.txt with a header 'points features labels' beside raw/trn_X.txt; optional tst_X_Y.txt, raw/tst_X.txt"
)

SPLITS: dict[SplitName, tuple[str, str]] = {"train": ("trn", "train"), "test": ("tst", "test")}


def matches(data: DataFolder) -> bool:
    return data.only is None and data.find("trn_X_Y.txt", "train_X_Y.txt") is not None


def read(data: DataFolder, config: Config) -> Source:
    shape: tuple[int, int] | None = None  # features, labels
    splits: dict[SplitName, Split] = {}
    for split, (short, word) in SPLITS.items():
        if split != "train" and data.find(f"{short}_X_Y.txt", f"{word}_X_Y.txt") is None:
            continue
        file = data.index_lines(
            data.require(f"{short}_X_Y.txt", f"{word}_X_Y.txt", because=f"it holds the {split} labels"), header=True
        )
        num_points, *this_shape = _parse_header(file.header or "", file.name)
        require_same_rows(f"{file.name}'s header", num_points, f"{file.name} after it", file.num_rows)
        if shape is not None and tuple(this_shape) != shape:
            raise UserError(
                f"{file.name}:1: header gives features, labels = {tuple(this_shape)}, the training file {shape}"
            )
        shape = (this_shape[0], this_shape[1])
        texts = data.index_lines(
            data.require(
                *(f"raw/{short}_X.txt", f"{short}_X.txt", f"{short}_raw_texts.txt", f"{word}_raw_texts.txt"),
                because="the encoder reads text",
            )
        )
        require_same_rows(texts.name, texts.num_rows, f"{file.name} after its header", file.num_rows)
        pairs = read_filtered_pairs(data, data.find(f"filter_labels_{word}.txt"), file.num_rows, shape[1])

        ranges = zip(texts.ranges, file.ranges, strict=True)
        splits[split] = Split(chunk_up((t.num_lines, partial(read_rows, t, y, *shape)) for t, y in ranges), pairs)
    assert shape is not None
    names_file = data.find("raw/Y.txt", "Y.txt", "labels.txt")
    names = read_label_names(data, names_file) if names_file else [str(label) for label in range(shape[1])]
    if len(names) != shape[1]:
        raise UserError(f"{names_file}: {len(names)} label names, but the headers say {shape[1]} labels")
    return Source(NAME, splits, names, num_features=shape[0])


def read_rows(texts: LineRange, lines: LineRange, num_features: int, num_labels: int) -> Iterator[Row]:
    for (_, text), (number, line) in zip(texts.lines(), lines.lines(), strict=True):
        # A point without labels has a line that starts with a space or with its first feature.
        head, _, tail = line.partition(" ")
        if ":" in head:
            head, tail = "", line
        labels = [parse_id(part, num_labels, "label", lines.name, number) for part in head.split(",") if head]
        columns, values = [], []
        for pair in tail.split():
            column, colon, value = pair.partition(":")
            if not colon:
                raise UserError(f"{lines.name}:{number}: '{clip(pair)}', expected feature:value")
            columns.append(parse_id(column, num_features, "feature", lines.name, number))
            values.append(parse_number(value, "feature value", lines.name, number))
            if not math.isfinite(values[-1]):
                raise UserError(f"{lines.name}:{number}: feature value '{clip(value)}' is not a finite number")
        yield Row(text, labels, (np.array(columns, np.int32), np.array(values, np.float32)))


def _parse_header(header: str, file: str) -> list[int]:
    parts = header.split()
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise UserError(f"{file}:1: header '{clip(header)}', expected three numbers: points, features, labels")
    return [int(part) for part in parts]
