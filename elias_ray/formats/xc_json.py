"""The Extreme Classification Repository's raw data: one JSON object per point and per label."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from elias_ray.config import Config
from elias_ray.errors import UserError
from elias_ray.formats.data_folder import DataFolder, LineRange
from elias_ray.formats.label_files import read_filtered_pairs, tell_apart
from elias_ray.formats.source import Row, Source, Split, SplitName, chunk_up
from elias_ray.formats.values import check_relevance, clip, parse_object

NAME = "XC raw JSON"
LOOKED_FOR = "trn.json.gz, lbl.json.gz; optional tst.json.gz, filter_labels_train.txt, filter_labels_test.txt"

SPLITS: dict[SplitName, tuple[str, str]] = {"train": ("trn.json", "train"), "test": ("tst.json", "test")}


def matches(data: DataFolder) -> bool:
    return data.only is None and data.find("trn.json", "lbl.json") is not None


def read(data: DataFolder, config: Config) -> Source:
    label_names = _label_names(data, data.require("lbl.json", because="it names the labels"))
    num_labels = len(label_names)
    splits: dict[SplitName, Split] = {}
    for split, (name, word) in SPLITS.items():
        if split != "train" and data.find(name) is None:
            continue
        file = data.index_lines(data.require(name, because=f"it holds the {split} points"), blank_rows=False)
        pairs = read_filtered_pairs(data, data.find(f"filter_labels_{word}.txt"), file.num_rows, num_labels)
        chunks = chunk_up((lines.num_lines, partial(read_rows, lines, num_labels)) for lines in file.ranges)
        splits[split] = Split(chunks, pairs)
    return Source(NAME, splits, label_names)


def read_rows(lines: LineRange, num_labels: int) -> Iterator[Row]:
    for number, line in lines.lines():
        where = f"{lines.name}:{number}"
        point = parse_object(line, lines.name, number)
        ids, relevances = point.get("target_ind"), point.get("target_rel")
        if not isinstance(ids, list):
            raise UserError(f"{where}: target_ind is {clip(json.dumps(ids))}, expected a list of label numbers")
        if relevances is None:
            relevances = [1.0] * len(ids)
        if not isinstance(relevances, list) or len(relevances) != len(ids):
            raise UserError(f"{where}: target_rel is {clip(json.dumps(relevances))}, expected {len(ids)} numbers")
        labels = []
        for label, relevance in zip(ids, relevances, strict=True):
            if type(label) is not int or not 0 <= label < num_labels:
                shown = clip(json.dumps(label))
                raise UserError(f"{where}: label {shown} is out of range, allowed 0 to {num_labels - 1}")
            if type(relevance) not in (int, float):
                raise UserError(f"{where}: relevance {clip(json.dumps(relevance))} is not a number")
            if check_relevance(relevance, lines.name, number) > 0:
                labels.append(label)
        yield Row(_text(point, where), labels)


def _text(point: dict[str, Any], where: str) -> str:
    if "title" not in point and "content" not in point:
        raise UserError(f"{where}: neither title nor content, found {clip(', '.join(point))}")
    parts = [point.get(key) or "" for key in ("title", "content")]
    for part in parts:
        if not isinstance(part, str):
            raise UserError(f"{where}: title and content must be strings, found {clip(json.dumps(part))}")
    return " ".join(part.strip() for part in parts).strip()


def _label_names(data: DataFolder, name: str) -> list[str]:
    """Titles; products often share one, so where a title is empty or not the only one its uid is added."""
    titles: list[str] = []
    line_of: dict[str, int] = {}
    for number, line in data.index_lines(name, blank_rows=False).lines():
        label = parse_object(line, name, number)
        uid = str(label.get("uid", ""))
        if not uid:
            raise UserError(f"{name}:{number}: a label without a uid: '{clip(line)}'")
        if uid in line_of:
            raise UserError(f"{name}:{number}: label uid '{clip(uid)}' stands on line {line_of[uid]} already")
        line_of[uid] = number
        titles.append(str(label.get("title") or "").strip())
    return tell_apart(titles, tags=line_of)
