"""Columns of prepared data, a whole split at once: peers hold all of it anyway."""

import itertools
from typing import Any

from elias_ray.data import Prepared
from elias_ray.formats.source import SplitName


def texts_of(prepared: Prepared, split: SplitName) -> list[str]:
    return _column(prepared, split, "text")


def tokens_of(prepared: Prepared, split: SplitName) -> list[list[int]]:
    return _column(prepared, split, "input_ids")


def _column(prepared: Prepared, split: SplitName, name: str) -> list[Any]:
    shards = (prepared.folder.read_table(shard, [name])[name].to_pylist() for shard in prepared.shards(split))
    return list(itertools.chain.from_iterable(shards))
