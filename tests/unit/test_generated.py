"""Generated data: any size, every label trained, learnable, the same every time."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from elias_ray import generated
from elias_ray.artifacts import Folder
from elias_ray.errors import UserError
from elias_ray.generated import LABELS_PER_GROUP, Size


def built(place: Path, size: Size, seed: int = 0) -> dict[str, list[tuple[str, list[int]]]]:
    """Text and label numbers of every point, by split."""
    folder = Folder.at(place)
    folder.create()
    generated.build(folder, size, seed)
    tables = {split: pq.read_table(place / f"{split}.parquet").to_pylist() for split in ("train", "test")}
    return {
        split: [(row["text"], [int(name.removeprefix("product ")) for name in row["labels"]]) for row in rows]
        for split, rows in tables.items()
    }


@pytest.mark.parametrize("size", [Size(1, 3, 1), Size(703, 429, 186), Size(1000, 2, 2), Size(2000, 100, 5)])
def test_every_label_has_a_training_point(size: Size, tmp_path: Path) -> None:
    points = built(tmp_path, size)
    assert (len(points["train"]), len(points["test"])) == (size.train, size.test)
    assert {label for _, labels in points["train"] for label in labels} == set(range(size.labels))
    for _, labels in points["train"] + points["test"]:
        assert labels == sorted(set(labels))
        assert labels
        assert set(labels) <= set(range(size.labels))


def test_points_of_a_group_share_words_and_labels(tmp_path: Path) -> None:
    size = Size(5000, 3000, 10)
    groups = -(-size.labels // LABELS_PER_GROUP)
    words_of: dict[int, set[str]] = {}
    for text, labels in built(tmp_path, size)["train"]:
        of_groups = np.bincount(np.array(labels) % groups)
        assert of_groups.max() > 0.4 * len(labels)
        words_of.setdefault(int(of_groups.argmax()), set()).update(text.split()[: generated.WORDS_OF_GROUP])
    assert len(words_of) == groups
    assert all(len(words) <= generated.GROUP_WORDS for words in words_of.values())


def test_the_tail_is_long(tmp_path: Path) -> None:
    points = built(tmp_path, Size(5000, 3000, 10))["train"]
    frequency = np.sort(np.bincount([label for _, labels in points for label in labels]))[::-1]
    assert frequency[:500].sum() > 2 * frequency[-2500:].sum()


def test_numbers_say_nothing_of_how_often_labels_occur(tmp_path: Path) -> None:
    """So that blocks of them are about the same work, also in the order of their names."""
    size = Size(5000, 3000, 10)
    points = built(tmp_path, size)["train"]
    frequency = np.bincount([label for _, labels in points for label in labels])
    for order in (range(size.labels), sorted(range(size.labels), key=str)):
        first_half = frequency[list(order)[: size.labels // 2]].sum()
        assert 0.45 < first_half / frequency.sum() < 0.55


def test_seed_and_size_decide_alone(tmp_path: Path) -> None:
    size = Size(50, 20, 5)
    first, second = built(tmp_path / "first", size), built(tmp_path / "second", size)
    assert first == second
    assert built(tmp_path / "third", size, seed=1) != first


def test_sizes() -> None:
    assert Size.of("generated:2812281") == Size(2_812_281, 1_717_899, 742_507)
    assert Size.of("generated:700:400:100") == Size(700, 400, 100)
    for wrong in ("generated:", "generated:many", "generated:0", "generated:7:8", "generated:7:0:1"):
        with pytest.raises(UserError, match="how many labels"):
            Size.of(wrong)
