"""fastText: '__label__a __label__b text' per line; a label is any word with the prefix."""

import re
from collections.abc import Iterator
from functools import partial

from elias_ray.config import Config
from elias_ray.errors import UserError
from elias_ray.formats.data_folder import DataFolder, LineRange
from elias_ray.formats.source import Row, Source, Split, SplitName, chunk_up

NAME = "fastText"
LOOKED_FOR = "train*.txt|ft or *.train, test*.txt|ft or *.test, with lines '__label__a __label__b text'"

PREFIX = "__label__"
BLANKS = r"[ \t\v\f\r\0]+"  # what fastText itself splits at; a no-break space is part of a word
EXTENSIONS = (".txt", ".ft", ".train", ".valid", ".test", ".fasttext")


def matches(data: DataFolder) -> bool:
    files = data.split_files(EXTENSIONS)
    return bool(files.get("train")) and PREFIX in data.head(files["train"][0])


def read(data: DataFolder, config: Config) -> Source:
    splits: dict[SplitName, Split] = {}
    for split, names in data.split_files(EXTENSIONS).items():
        splits[split] = Split(
            chunk_up((lines.num_lines, partial(read_rows, lines)) for lines in data.line_ranges(names, blank_rows=True))
        )
    return Source(NAME, splits, label_names=None)


def read_rows(lines: LineRange) -> Iterator[Row]:
    for number, line in lines.lines():
        words = [word for word in re.split(BLANKS, line) if word]
        labels = [word.removeprefix(PREFIX) for word in words if word.startswith(PREFIX)]
        if "" in labels:
            raise UserError(f"{lines.name}:{number}: '{PREFIX}' without a name behind it")
        yield Row(" ".join(word for word in words if not word.startswith(PREFIX)), labels)
