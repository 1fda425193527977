"""Artifacts: committed whole or not at all; a run keeps its config."""

import json
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from elias_ray.artifacts import Folder, committed, committing, record_config
from elias_ray.config import load_config
from elias_ray.errors import UserError


@pytest.fixture(params=["local", "uri", "other filesystem"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    (tmp_path / "run").mkdir()
    if request.param == "other filesystem":  # not LocalFileSystem: the path that object stores take
        return Folder(SubTreeFileSystem(str(tmp_path), LocalFileSystem()), "run")
    return Folder.at(tmp_path / "run" if request.param == "local" else f"file://{tmp_path}/run")


def test_commit(folder: Folder) -> None:
    step = folder / "step"
    assert committed(step) is None
    with committing(step) as manifest:
        for name in ("a.txt", "sub/b.txt"):
            manifest.files[name] = step.write(name, b"content")
        manifest.facts["rows"] = 7
        assert committed(step) is None
    found = committed(step)
    assert found is not None
    assert found == manifest
    assert step.files() == {"a.txt": 7, "manifest.json": len(step.read("manifest.json")), "sub/b.txt": 7}
    assert json.loads(step.read("manifest.json"))["files"]["a.txt"]["sha256"].startswith(
        "ed7002b439e9ac845f22357d822ba"
    )


def test_a_failed_step_leaves_nothing(folder: Folder) -> None:
    step = folder / "step"

    def fail() -> None:
        with committing(step):
            step.write("a.txt", b"content")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not step.exists()


def test_leftovers_are_removed(folder: Folder) -> None:
    step = folder / "step"
    step.create()
    step.write("stale.txt", b"from a killed run")
    with committing(step) as manifest:
        manifest.files["a.txt"] = step.write("a.txt", b"content")
    assert not step.exists("stale.txt")


@pytest.mark.parametrize("spoil", ["truncate", "remove"])
def test_an_incomplete_artifact_is_told(folder: Folder, spoil: str) -> None:
    step = folder / "step"
    with committing(step) as manifest:
        manifest.files["a.txt"] = step.write("a.txt", b"content")
    if spoil == "truncate":
        step.write("a.txt", b"cont")
    else:
        step.filesystem.delete_file(step.path + "/a.txt")
    with pytest.raises(UserError, match=r"a\.txt: found (4 bytes|nothing), the manifest says 7 bytes"):
        committed(step)


def test_tables_are_checked_when_read(folder: Folder) -> None:
    table = pa.table({"x": list(range(1000))})
    folder.write_table("t.parquet", table)
    assert folder.read_table("t.parquet") == table
    content = bytearray(folder.read("t.parquet"))
    content[100] ^= 0xFF
    folder.write("t.parquet", bytes(content))
    with pytest.raises(UserError, match=r"t\.parquet is missing or damaged"):
        folder.read_table("t.parquet")
    with pytest.raises(UserError, match=r"gone\.parquet is missing or damaged"):
        folder.read_table("gone.parquet")


def test_a_late_task_does_not_bring_a_deleted_artifact_back(folder: Folder) -> None:
    step = folder / "step"
    (step / "scratch").create()
    step.delete()
    with pytest.raises(OSError, match="No such file"):
        (step / "scratch").write("late.parquet", b"content")
    assert not step.exists()


def test_folders_travel_to_workers(folder: Folder) -> None:
    folder.write("a.txt", b"content")
    assert pickle.loads(pickle.dumps(folder)).read("a.txt") == b"content"


def test_unusable_location() -> None:
    with pytest.raises(UserError, match="nosuch://bucket"):
        Folder.at("nosuch://bucket/run")


def test_a_folder_of_something_else_is_left_alone(folder: Folder) -> None:
    for name in ("config.yaml", "thesis.txt"):
        folder.write(name, b"mine: 1")
        with pytest.raises(UserError, match="not of a run"):
            record_config(folder, load_config())
        assert folder.files() == {name: 7}
        folder.filesystem.delete_file(f"{folder.path}/{name}")


def test_a_file_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot use"):
        record_config(Folder.at(tmp_path / "file"), load_config())


def test_a_damaged_manifest_is_told(folder: Folder) -> None:
    folder.write("manifest.json", b"{")
    with pytest.raises(UserError, match="is damaged"):
        committed(folder)


def test_a_run_keeps_its_config(folder: Folder) -> None:
    record_config(folder, load_config(overrides=["data.path=mistyped"]))  # nothing was made with it
    record_config(folder, load_config())
    with committing(folder / "step"):
        pass
    record_config(folder, load_config())
    record_config(folder, load_config(overrides=["resources.workers=2"]))
    with pytest.raises(UserError) as caught:
        record_config(folder, load_config(overrides=["search.beam=7", "data.path=elsewhere"]))
    for words in ("data.path: apidocs -> ", "elsewhere", "search.beam: 20 -> 7", "another --run"):
        assert words in str(caught.value)
