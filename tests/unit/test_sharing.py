"""What trials of a search have from one another."""

import os
from pathlib import Path

import pytest

from elias_ray.artifacts import Folder, committed, committing
from elias_ray.config import Config, flatten, load_config
from elias_ray.sharing import READS, Shared, is_read, taken

# Of the config, what no step up to the first stage's model reads.
READ_LATER = {
    *("search.beta", "search.labels_per_row"),
    *(f"{name}." for name in ("stage2", "ranker", "calibration", "ensemble", "inference", "checkpoints", "resources")),
}


def test_every_key_is_known_to_be_read_before_or_after() -> None:
    """A new key must be placed: a step that reads it without saying so would be shared where it differs."""
    for key in flatten(Config()):
        before = any(is_read(key, step) for step in READS)
        after = any(key == read or (read.endswith(".") and key.startswith(read)) for read in READ_LATER)
        assert before != after, key


def make(shared: Shared, name: str, made_from: str = "") -> bool:
    """Whether the body had to."""
    artifact, made = shared.run / "member1" / name, False
    with shared.step(name, made_from, [artifact]):
        if committed(artifact) is None:
            made = True
            with committing(artifact) as manifest:
                manifest.files["part/file"] = artifact.write("part/file", shared.run.path.encode())
    return made


def shared(folder: Path, run: str, *changes: str) -> Shared:
    return Shared(Folder.at(folder / "shared"), Folder.at(folder / run), load_config("apidocs", changes))


def test_the_second_takes_what_the_first_has_made(tmp_path: Path) -> None:
    first, second = shared(tmp_path, "a"), shared(tmp_path, "b", "search.beta=7")
    assert make(first, "stage1")
    assert not make(second, "stage1")
    files = [tmp_path / run / "member1/stage1/part/file" for run in "ab"]
    assert files[1].read_text() == first.run.path
    assert os.path.samefile(*files)
    assert list(taken(second.run)) == [f"stage1-{first.key('stage1', '')}"]
    assert taken(first.run) == {}
    assert not make(second, "stage1"), "it has it"


@pytest.mark.parametrize(
    ("step", "change", "same"),
    [
        ("stage1", "search.alpha=7", False),
        ("stage1", "stage1.shortlist_weight=0.7", False),
        ("stage1", "search.beta=7", True),
        ("stage1", "search.labels_per_row=700", True),
        ("stage1", "stage2.shortlist_weight=0.7", True),
        ("stage1", "resources.workers=2", True),
        ("clusters", "search.alpha=7", True),
        ("prepare", "search.alpha=7", True),
        ("prepare", "encoder.max_length=7", False),
        ("embeddings", "encoder.dropout=0.7", True),
    ],
)
def test_the_key_decides(step: str, change: str, same: bool, tmp_path: Path) -> None:
    make(shared(tmp_path, "a"), step)
    assert make(shared(tmp_path, "b", change), step) != same


def test_a_step_that_starts_from_something_else_is_another(tmp_path: Path) -> None:
    assert make(shared(tmp_path, "a"), "stage1", "these clusters")
    assert make(shared(tmp_path, "b"), "stage1", "other clusters")


def test_one_that_failed_gives_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), shared(tmp_path, "a").step("stage1", "", []):
        raise RuntimeError("in the middle")
    assert make(shared(tmp_path, "b"), "stage1")
