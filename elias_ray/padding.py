"""Rows of unequal length as one tensor."""

import numpy as np
import torch
from torch import Tensor


def pad_tokens(tokens: list[list[int]]) -> tuple[Tensor, Tensor]:
    """input_ids_BT and attention_mask_BT."""
    input_ids_BT = pad(tokens, 0)
    lengths_B = torch.tensor([len(ids) for ids in tokens])
    return input_ids_BT, (torch.arange(input_ids_BT.shape[1]) < lengths_B[:, None]).long()


def pad(rows: list[list[int]], filling: int) -> Tensor:
    """(rows, longest), at least one wide."""
    padded = np.full((len(rows), max(1, *map(len, rows))), filling, np.int64)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return torch.from_numpy(padded)
