"""A model on disk: safetensors files named after the parameters.

  encoder.safetensors    phi
  W_C-START-STOP.safetensors    weight (rows, D) and bias (rows,) of these rows
  A-START-STOP.safetensors      labels and weights of these rows, (rows, kappa) each
  W_L-START-STOP.safetensors    weight (rows, D) and bias (rows,) of these rows
Each worker writes its rows; any number of workers reads them back, each the rows it owns now.
"""

import re
from collections.abc import Iterator, Sequence

import safetensors.torch
import torch
from torch import Tensor

from elias_ray.adjacency import Adjacency
from elias_ray.artifacts import FileEntry, Folder, Manifest
from elias_ray.cluster_classifiers import ClusterClassifiers
from elias_ray.encoder import Encoder
from elias_ray.label_classifiers import LabelClassifiers
from elias_ray.model import Elias, Search
from elias_ray.workers import Workers

ROWS_PER_FILE = 2**16


def write_model(folder: Folder, model: Elias, first: bool) -> Iterator[FileEntry]:
    """This worker's rows; and from the first worker what all have."""
    if first:
        yield write_tensors(folder, "encoder", dict(model.encoder.state_dict()))
    rows_of = rows_of_tables(model)
    for name, tensors in tensors_of_tables(model).items():
        yield from write_rows(folder, name, rows_of[name], tensors)


def tensors_of_tables(model: Elias) -> dict[str, dict[str, Tensor]]:
    """This worker's rows of each table, by the names that they have on disk."""
    clusters, labels, edges = model.cluster_classifiers, model.label_classifiers, model.adjacency
    return {
        "W_C": {"weight": clusters.weight, "bias": clusters.bias},
        "A": {"labels": edges.labels, "weights": edges.weights},
        "W_L": {"weight": labels.weight, "bias": labels.bias},
    }


def rows_of_tables(model: Elias) -> dict[str, range]:
    """Which rows those are."""
    clusters, labels, edges = model.cluster_classifiers, model.label_classifiers, model.adjacency
    return {"W_C": clusters.rows, "A": edges.rows, "W_L": labels.rows}


def read_model(
    folder: Folder,
    manifest: Manifest,
    encoder: Encoder,
    search: Search,
    beta: float | None,
    workers: Workers,
    device: torch.device,
    trainable: bool = True,
) -> Elias:
    """With this worker's rows of the tables. `encoder` gets its weights from here too."""
    num_clusters, num_labels = int(manifest.facts["num_clusters"]), int(manifest.facts["num_labels"])
    encoder.load_state_dict(read_tensors(folder, manifest, "encoder"))
    clusters = read_rows(folder, manifest, "W_C", workers.block(num_clusters))
    edges = read_rows(folder, manifest, "A", workers.block(num_clusters))
    labels = read_rows(folder, manifest, "W_L", workers.block(num_labels))
    coarse = labels["weight"].dtype == torch.bfloat16
    return Elias(
        encoder.to(device),
        ClusterClassifiers(
            clusters["weight"].to(device), clusters["bias"].to(device), num_clusters, workers, trainable, coarse
        ),
        Adjacency(edges["labels"].to(device), edges["weights"].to(device), beta, num_clusters, workers, trainable),
        LabelClassifiers(labels["weight"].to(device), labels["bias"].to(device), num_labels, workers, trainable),
        search,
    )


def read_tensors(folder: Folder, manifest: Manifest, name: str) -> dict[str, Tensor]:
    """'encoder' or another file of tensors, whole."""
    return _read(folder, manifest.files[f"{name}.safetensors"])


def read_rows(
    folder: Folder, manifest: Manifest, name: str, rows: range, keys: Sequence[str] = ()
) -> dict[str, Tensor]:
    """These rows of 'W_C', 'A' or 'W_L', from whichever files hold them; all tensors there, or those of the `keys`."""
    whole: dict[str, Tensor] = {}
    filled = 0
    for file in sorted(manifest.files):
        match = re.fullmatch(rf"{name}-(\d+)-(\d+)\.safetensors", file)
        if match is None:
            continue
        start, stop = max(rows.start, int(match[1])), min(rows.stop, int(match[2]))
        if start >= stop and (rows or whole):  # of no rows, too, the shape
            continue
        tensors = _read(folder, manifest.files[file])
        for key in keys or tensors:
            value = tensors[key]
            if key not in whole:
                whole[key] = value.new_empty((len(rows), *value.shape[1:]))
            if start < stop:
                whole[key][start - rows.start : stop - rows.start] = value[start - int(match[1]) : stop - int(match[1])]
        filled += max(0, stop - start)
    assert filled == len(rows), (name, rows)
    return whole


def write_rows(folder: Folder, name: str, rows: range, tensors: dict[str, Tensor]) -> Iterator[FileEntry]:
    for start in range(rows.start, rows.stop, ROWS_PER_FILE):
        stop = min(start + ROWS_PER_FILE, rows.stop)
        part = {key: tensor[start - rows.start : stop - rows.start] for key, tensor in tensors.items()}
        yield write_tensors(folder, f"{name}-{start:010d}-{stop:010d}", part)


def write_tensors(folder: Folder, name: str, tensors: dict[str, Tensor]) -> FileEntry:
    content = safetensors.torch.save({key: value.detach().cpu().contiguous() for key, value in tensors.items()})
    return folder.write(f"{name}.safetensors", content)


def _read(folder: Folder, entry: FileEntry) -> dict[str, Tensor]:
    return safetensors.torch.load(folder.read_checked(entry))
