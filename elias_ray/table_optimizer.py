"""AdamW for the tables, W_L and A, beside the dense parameters' own: every k steps, on the mean gradient of those.

Dense and fused over the whole block of rows: exact, and cheap once shared among k steps, which touch most rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MOMENTS = ("exp_avg", "exp_avg_sq")  # as torch's AdamW names them


@dataclass(frozen=True)
class Table:
    """A tensor outside autograd and the buffer that its gradient is added to."""

    name: str
    values: Tensor
    gradient: Tensor
    weight_decay: float


class TableOptimizer:
    def __init__(self, tables: list[Table], update_every: int) -> None:
        self.tables, self.update_every = tables, update_every
        self.accumulated = 0  # steps since the last update
        groups = [
            {"params": [table.values], "weight_decay": table.weight_decay, "name": table.name} for table in tables
        ]
        self.adamw = torch.optim.AdamW(groups, fused=True)
        for table in tables:
            table.values.grad = table.gradient

    def step(self, learning_rate: float) -> None:
        """After every backward; `learning_rate` counts when an update is due."""
        self.accumulated += 1
        if self.accumulated == self.update_every:
            self.flush(learning_rate)

    def state(self) -> dict[str, dict[str, Tensor]]:
        """The moments of each table; between two updates there is nothing else."""
        assert self.accumulated == 0
        return {
            table.name: {moment: self.adamw.state[table.values][moment] for moment in MOMENTS} for table in self.tables
        }

    def restore(self, updates: int, moments: dict[str, dict[str, Tensor]]) -> None:
        for table in self.tables:
            step = torch.tensor(float(updates), device=table.values.device)
            self.adamw.state[table.values] = {"step": step, **moments[table.name]}

    def flush(self, learning_rate: float) -> None:
        """Update now, with what has been gathered; for the end of training."""
        if self.accumulated == 0:
            return
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate
        for table in self.tables:
            table.gradient.div_(self.accumulated)
        self.adamw.step()
        for table in self.tables:
            table.gradient.zero_()
        self.accumulated = 0
