"""The encoder phi.

Legend: B points, T tokens (padded), D embedding size.
"""

from pathlib import Path
from typing import Literal

from torch import Tensor, nn
from transformers import AutoModel

from elias_ray.tokenizer import encoder_location


class Encoder(nn.Module):
    """phi(x): a Hugging Face encoder, pooled, with dropout on top in training."""

    def __init__(self, name: str, pooling: Literal["mean", "cls"], dropout: float) -> None:
        super().__init__()
        location = encoder_location(name)
        self.transformer = AutoModel.from_pretrained(location, local_files_only=Path(location).is_dir())
        # BERT's own pooler is not part of phi; unused parameters would only cost memory and traffic.
        self.transformer.pooler = None
        self.pooling, self.dropout = pooling, nn.Dropout(dropout)

    @property
    def embedding_size(self) -> int:
        return int(self.transformer.config.hidden_size)

    def forward(self, input_ids_BT: Tensor, attention_mask_BT: Tensor) -> Tensor:
        states_BTD = self.transformer(input_ids=input_ids_BT, attention_mask=attention_mask_BT).last_hidden_state
        if self.pooling == "cls":
            embedding_BD = states_BTD[:, 0]
        else:
            weights_BT1 = attention_mask_BT[:, :, None].to(states_BTD.dtype)
            embedding_BD = (states_BTD * weights_BT1).sum(dim=1) / weights_BT1.sum(dim=1).clamp(min=1)
        return self.dropout(embedding_BD)
