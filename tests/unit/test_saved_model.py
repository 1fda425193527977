"""Row tables on disk: written by some workers, read by others."""

from pathlib import Path

import pytest
import torch

from elias_ray import saved_model
from elias_ray.artifacts import FileEntry, Folder, Manifest
from elias_ray.errors import UserError
from elias_ray.workers import Workers


def write(folder: Folder, table: torch.Tensor, workers: int) -> Manifest:
    entries: list[FileEntry] = []
    for rank in range(workers):
        rows = Workers(rank, workers).block(len(table))
        part = table[rows.start : rows.stop]
        entries.extend(saved_model.write_rows(folder, "W_L", rows, {"weight": part, "bias": part[:, 0].clone()}))
    return Manifest({entry.name: entry for entry in entries}, {})


@pytest.mark.parametrize("writers", [1, 2, 3])
@pytest.mark.parametrize("readers", [1, 2, 3, 5])
def test_any_number_of_workers_reads_what_any_wrote(
    writers: int, readers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_model, "ROWS_PER_FILE", 4)
    folder, table = Folder.at(tmp_path), torch.arange(51.0).view(17, 3)
    manifest = write(folder, table, writers)
    assert len(manifest.files) > writers
    parts = [
        saved_model.read_rows(folder, manifest, "W_L", Workers(rank, readers).block(17)) for rank in range(readers)
    ]
    assert torch.equal(torch.cat([part["weight"] for part in parts]), table)
    assert torch.equal(torch.cat([part["bias"] for part in parts]), table[:, 0])


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = Folder.at(tmp_path)
    manifest = write(folder, torch.ones(5, 2), 1)
    (name,) = manifest.files
    content = bytearray((tmp_path / name).read_bytes())
    content[-1] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{name} is damaged.*delete the folder"):
        saved_model.read_rows(folder, manifest, "W_L", range(5))
