"""Brute force: a classifier for every label on phi(x), trained against all labels of all points. No index.

The encoder, the epochs, the batches and the rates are the run's, of both stages together; so is the start of W_L, and
so are the embeddings of the training points, where the run has them: they cost what they cost the run.

Legend: N points, B points of a batch, L labels, D embedding size, K best labels.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from elias_ray.analysis import seconds_of_steps
from elias_ray.artifacts import committed
from elias_ray.batches import batches_of_window
from elias_ray.config import Config
from elias_ray.data import read_vectors
from elias_ray.encoder import Encoder, phi
from elias_ray.padding import pad_tokens
from elias_ray.peers import Case
from elias_ray.peers.columns import tokens_of
from elias_ray.predictions import TOP_K
from elias_ray.starting_values import START_BIAS, centroids, random_rows

CPU = torch.device("cpu")
POINTS_AT_ONCE = 256


@dataclass(frozen=True)
class OneVersusAll:
    case: Case
    encoder: Encoder
    classifiers: nn.Linear
    seconds_before: float  # of its training, spent by the run

    def predict(self) -> sp.csr_matrix:
        vectors_ND = torch.from_numpy(phi(self.encoder, tokens_of(self.case.member.prepared, "test"), CPU))
        best = []
        with torch.no_grad():
            for part_BD in vectors_ND.split(POINTS_AT_ONCE):
                logits_BL = self.classifiers(part_BD)
                best.append(logits_BL.topk(min(TOP_K, logits_BL.shape[1]), dim=1))
        logits_NK, labels_NK = (torch.cat(parts).numpy() for parts in zip(*best, strict=True))
        indptr = np.arange(len(logits_NK) + 1) * logits_NK.shape[1]
        scores = torch.from_numpy(logits_NK.ravel()).sigmoid().numpy()
        return sp.csr_matrix((scores, labels_NK.ravel(), indptr), shape=(len(logits_NK), len(self.classifiers.bias)))

    def save(self, folder: Path) -> None:
        save_file(self.encoder.state_dict(), folder / "encoder.safetensors")
        save_file(self.classifiers.state_dict(), folder / "W_L.safetensors")


def train(case: Case) -> OneVersusAll:
    config, prepared = case.member.config, case.member.prepared
    torch.set_flush_denormal(True)  # as for the workers of the run
    torch.set_num_threads(case.threads)
    torch.manual_seed(config.seed)
    encoder = Encoder.of(config.encoder)
    tokens, labels_NL = tokens_of(prepared, "train"), prepared.labels("train")
    frozen = config.stage1.frozen_epochs + config.stage2.frozen_epochs
    epochs = config.stage1.epochs + config.stage2.epochs
    vectors_ND, seconds_before = np.zeros((len(tokens), 0), np.float32), 0.0
    if frozen or config.training.start == "centroids":
        vectors_ND, seconds_before = training_vectors(case, encoder, tokens)
    classifiers = starting_classifiers(config, encoder.embedding_size, vectors_ND, labels_NL)
    if frozen:
        optimizer = torch.optim.AdamW(groups_of(config, classifiers, None))
        vectors = torch.from_numpy(vectors_ND)
        dropout = nn.Dropout(config.encoder.dropout)
        for rows_B, factor in steps(config, tokens, 0, frozen, "one-versus-all, phi frozen"):
            step(classifiers(dropout(vectors[rows_B])), labels_NL[rows_B], optimizer, factor)
    if epochs:
        encoder.train()
        optimizer = torch.optim.AdamW(groups_of(config, classifiers, encoder))
        for rows_B, factor in steps(config, tokens, frozen, epochs, "one-versus-all"):
            embedding_BD = encoder(*pad_tokens([tokens[row] for row in rows_B]))
            step(classifiers(embedding_BD), labels_NL[rows_B], optimizer, factor)
    return OneVersusAll(case, encoder, classifiers, seconds_before)


def training_vectors(case: Case, encoder: Encoder, tokens: list[list[int]]) -> tuple[npt.NDArray[np.float32], float]:
    """phi of every training point by the encoder as it came, and the seconds that the run has spent on that."""
    made = case.member.embeddings("pretrained", "train")
    if committed(made) is None:
        return phi(encoder, tokens, CPU), 0.0
    vectors_ND = np.concatenate([read_vectors(made, shard) for shard in case.member.prepared.shards("train")])
    seconds = sum(step["seconds"] for step in seconds_of_steps(case.member) if step["step"] == "embeddings")
    return vectors_ND, seconds


def starting_classifiers(
    config: Config, size: int, vectors_ND: npt.NDArray[np.float32], labels_NL: sp.csr_matrix
) -> nn.Linear:
    num_labels = labels_NL.shape[1]
    classifiers = nn.Linear(size, num_labels)
    classifiers.bias.data.fill_(START_BIAS)
    if config.training.start == "centroids":
        one_cluster_L = np.zeros(num_labels, np.int32)
        found = centroids(lambda: [(vectors_ND, labels_NL)], one_cluster_L, 1, range(num_labels), size)
        classifiers.weight.data = found.labels_LD
    else:
        classifiers.weight.data = random_rows("W_L", config.seed, range(num_labels), size)
    return classifiers


def groups_of(config: Config, classifiers: nn.Linear, encoder: Encoder | None) -> list[dict[str, Any]]:
    decay, stage = config.training.weight_decay, config.stage1
    groups: list[dict[str, Any]] = [
        {"params": [classifiers.weight], "peak_lr": stage.lr_classifiers, "weight_decay": decay},
        {"params": [classifiers.bias], "peak_lr": stage.lr_classifiers, "weight_decay": 0.0},
    ]
    if encoder is not None:
        groups.append({"params": list(encoder.parameters()), "peak_lr": stage.lr_encoder, "weight_decay": decay})
    return groups


def steps(
    config: Config, tokens: list[list[int]], first: int, epochs: int, title: str
) -> Iterator[tuple[npt.NDArray[np.int64], float]]:
    """The rows of every batch, and the part of the learning rate that is due: a warm-up, then down to nothing."""
    lengths = np.array([len(ids) for ids in tokens])
    total = epochs * -(-len(tokens) // config.training.batch_size)
    warmup = config.training.warmup * total
    bar = tqdm(total=total, desc=title, mininterval=5)
    for epoch in range(first, first + epochs):
        for rows_B in batches_of_window(lengths, config.training.batch_size, (config.seed, epoch, 0)):
            yield rows_B, min((bar.n + 1) / (warmup + 1), (total - bar.n) / max(1.0, total - warmup))
            bar.update()
    bar.close()


def step(logits_BL: Tensor, labels_BL: sp.csr_matrix, optimizer: torch.optim.Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = factor * group["peak_lr"]
    true_BL = torch.from_numpy(labels_BL.toarray().astype(np.float32, copy=False))
    loss = F.binary_cross_entropy_with_logits(logits_BL, true_BL, reduction="sum") / len(true_BL)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
