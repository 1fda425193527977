"""The LightXML/AttentionXML way: a text per line, and its labels on the same line of another file."""

from collections.abc import Iterator
from functools import partial

from elias_ray.config import Config
from elias_ray.formats.data_folder import SPLIT_WORDS, DataFolder, LineRange
from elias_ray.formats.source import Row, Source, Split, SplitName, chunk_up, require_same_rows

NAME = "LightXML/AttentionXML texts and labels"
LOOKED_FOR = "train_raw_texts.txt, train_labels.txt; optional test_raw_texts.txt, test_labels.txt"


def matches(data: DataFolder) -> bool:
    return data.only is None and data.find(*_texts("train")) is not None


def read(data: DataFolder, config: Config) -> Source:
    splits: dict[SplitName, Split] = {}
    for split, words in SPLIT_WORDS.items():
        word = next((w for w in words if data.find(f"{w}_labels.txt", *_texts(w))), words[0])
        if split != "train" and data.find(f"{word}_labels.txt", *_texts(word)) is None:
            continue
        because = f"{split} points have a text and labels each"
        texts = data.index_lines(data.require(*_texts(word), because=because))
        labels = data.index_lines(data.require(f"{word}_labels.txt", because=because))
        require_same_rows(texts.name, texts.num_rows, labels.name, labels.num_rows)
        pairs = zip(texts.ranges, labels.ranges, strict=True)
        splits[split] = Split(chunk_up((t.num_lines, partial(read_rows, t, y)) for t, y in pairs))
    return Source(NAME, splits, label_names=None)


def read_rows(texts: LineRange, labels: LineRange) -> Iterator[Row]:
    for (_, text), (_, names) in zip(texts.lines(), labels.lines(), strict=True):
        yield Row(text, names.split())


def _texts(word: str) -> tuple[str, str]:
    return f"{word}_raw_texts.txt", f"{word}_texts.txt"
