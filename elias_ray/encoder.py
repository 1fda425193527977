"""The encoder phi.

Legend: B points, T tokens (padded), D embedding size.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from elias_ray import config as configs
from elias_ray.padding import pad_tokens
from elias_ray.tokenizer import encoder_location

TEXTS_AT_ONCE = 64  # that are embedded without being trained on


class Encoder(nn.Module):
    """phi(x): a Hugging Face encoder, pooled, with dropout on top in training."""

    def __init__(
        self,
        name: str,
        pooling: Literal["mean", "cls"],
        dropout: float,
        precision: Literal["float32", "bfloat16"] = "float32",
        with_weights: bool = True,
    ) -> None:
        """`precision`: of the products; weights, sums and phi(x) itself are in float32 either way.

        `with_weights`: as it came; else without any that mean something, to be loaded.
        """
        super().__init__()
        location = encoder_location(name)
        offline = Path(location).is_dir()
        if with_weights:
            self.transformer = AutoModel.from_pretrained(location, local_files_only=offline)
        else:
            self.transformer = AutoModel.from_config(AutoConfig.from_pretrained(location, local_files_only=offline))
        # BERT's own pooler is not part of phi; unused parameters would only cost memory and traffic.
        self.transformer.pooler = None
        self.pooling, self.dropout, self.precision = pooling, nn.Dropout(dropout), precision

    @classmethod
    def of(cls, settings: configs.Encoder, name: str | None = None, with_weights: bool = True) -> "Encoder":
        """As configured; `name` is where it is found, if elsewhere."""
        return cls(name or settings.name, settings.pooling, settings.dropout, settings.precision, with_weights)

    @property
    def embedding_size(self) -> int:
        return int(self.transformer.config.hidden_size)

    def forward(self, input_ids_BT: Tensor, attention_mask_BT: Tensor) -> Tensor:
        with torch.autocast(input_ids_BT.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            states_BTD = self.transformer(input_ids=input_ids_BT, attention_mask=attention_mask_BT).last_hidden_state
        states_BTD = states_BTD.float()
        if self.pooling == "cls":
            embedding_BD = states_BTD[:, 0]
        else:
            weights_BT1 = attention_mask_BT[:, :, None].to(states_BTD.dtype)
            embedding_BD = (states_BTD * weights_BT1).sum(dim=1) / weights_BT1.sum(dim=1).clamp(min=1)
        return self.dropout(embedding_BD)


def phi(
    encoder: Encoder, tokens: list[list[int]], device: torch.device, show: Callable[[int], None] = lambda count: None
) -> npt.NDArray[np.float32]:
    """Without dropout and without gradient: (texts, D). Texts of similar length go together."""
    was_training = encoder.training
    encoder.eval()
    vectors_ND = np.empty((len(tokens), encoder.embedding_size), np.float32)
    order = np.argsort([len(ids) for ids in tokens], kind="stable")
    for start in range(0, len(order), TEXTS_AT_ONCE):
        places = order[start : start + TEXTS_AT_ONCE]
        input_ids_BT, attention_mask_BT = pad_tokens([tokens[place] for place in places])
        with torch.no_grad():
            vectors_ND[places] = encoder(input_ids_BT.to(device), attention_mask_BT.to(device)).cpu().numpy()
        show(start + len(places))
    encoder.train(was_training)
    return vectors_ND
