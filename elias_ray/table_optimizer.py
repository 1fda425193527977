"""AdamW for the tables, W_C, W_L and A, beside the encoder's own: every k steps, on the mean gradient of those.

TableOptimizer: dense and fused over the whole block of rows: exact, and cheap once shared among k steps, which touch
most rows. For W_C, every row of which has a gradient, k is 1.

RowOptimizer, for W_L in bfloat16: some rows at a time, in the moment that their gradient is known, so none is kept. It
touches no row that has no gradient, so an update costs what its own rows cost, however many others there are.

Legend: L rows of a worker, U rows of an update, D width of a row.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MOMENTS = ("exp_avg", "exp_avg_sq")  # as torch's AdamW names them
ROW_MOMENTS = ("second_moment", "touched")
BETA_2, EPSILON = 0.999, 1e-8  # torch's own
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Table:
    """A tensor outside autograd and the buffer that its gradient is added to."""

    name: str
    values: Tensor
    gradient: Tensor
    weight_decay: float


class EveryFewSteps(ABC):
    """Updates on the mean gradient of some steps. `learning_rates` are those of all updates, the first one first."""

    def __init__(self, learning_rates: Sequence[float], update_every: int) -> None:
        self.learning_rates, self.update_every = learning_rates, update_every
        self.updates_done = self.accumulated = 0  # steps since the last update

    def step(self) -> None:
        """After every backward."""
        self.accumulated += 1
        if self.accumulated == self.update_every:
            self._update_now()

    def finish(self) -> None:
        """Behind the last step: update with what has been gathered since."""
        if self.accumulated:
            self._update_now()

    def _update_now(self) -> None:
        steps, self.accumulated = self.accumulated, 0
        self.updates_done += 1
        self.update(steps)

    @abstractmethod
    def update(self, steps: int) -> None:
        """With what so many steps have gathered."""

    def go_on(self, steps_done: int) -> None:
        """Behind so many steps, none of which waits for its update."""
        self.updates_done = -(-steps_done // self.update_every)


class TableOptimizer(EveryFewSteps):
    def __init__(self, tables: list[Table], learning_rates: Sequence[float], update_every: int) -> None:
        super().__init__(learning_rates, update_every)
        self.tables = tables
        groups = [
            {"params": [table.values], "weight_decay": table.weight_decay, "name": table.name} for table in tables
        ]
        self.adamw = torch.optim.AdamW(groups, fused=True)
        for table in tables:
            table.values.grad = table.gradient

    @property
    def moments(self) -> dict[str, tuple[str, ...]]:
        """What is kept of each table, by name."""
        return {table.name: MOMENTS for table in self.tables}

    def state(self) -> dict[str, dict[str, Tensor]]:
        """The same as tensors; between two updates there is nothing else."""
        assert self.accumulated == 0
        return {
            table.name: {moment: self.adamw.state[table.values][moment] for moment in MOMENTS} for table in self.tables
        }

    def restore(self, steps_done: int, kept: dict[str, dict[str, Tensor]]) -> None:
        self.go_on(steps_done)
        for table in self.tables:
            step = torch.tensor(float(self.updates_done), device=table.values.device)
            self.adamw.state[table.values] = {"step": step, **kept[table.name]}

    def update(self, steps: int) -> None:
        for group in self.adamw.param_groups:
            group["lr"] = self.learning_rates[self.updates_done - 1]
        if steps > 1:
            for table in self.tables:
                table.gradient.div_(steps)
        self.adamw.step()
        for table in self.tables:
            table.gradient.zero_()


class RowOptimizer(EveryFewSteps):
    """AdamW without a first moment and with one second moment a row, the mean over the row of squared gradients.

    Exactly that of all rows: what updates without a gradient would have done to a row, its decay and that of its
    moment, is made up for when it is touched next. bfloat16 is too coarse for the size of an update, so weights are
    rounded up or down by chance, such that the mean of what is stored is what was computed.
    """

    def __init__(
        self,
        name: str,
        values: Tensor,
        gradients: Callable[[], Iterable[tuple[Tensor, Tensor]]],
        weight_decay: float,
        learning_rates: Sequence[float],
        update_every: int,
        seed: int,
    ) -> None:
        """`gradients()` are distinct rows and their mean gradient over the steps since it was last called."""
        assert values.dtype == torch.bfloat16, values.dtype
        super().__init__(learning_rates, update_every)
        self.name, self.values, self.gradients, self.seed = name, values, gradients, seed
        decay = np.log1p(-np.array(learning_rates) * weight_decay)
        self.log_decay = torch.from_numpy(np.concatenate([[0.0], np.cumsum(decay)])).to(values.device)  # up to each
        self.second_moment = torch.zeros(len(values), device=values.device)
        self.touched = torch.zeros(len(values), dtype=torch.int32, device=values.device)  # updates done by then

    def update(self, steps: int) -> None:
        draw_D = self._draw()
        for rows_U, grad_UD in self.gradients():
            self._update(rows_U, grad_UD, draw_D)

    def finish(self) -> None:
        """Then rows that were not touched for a while."""
        super().finish()
        draw_D = self._draw()
        for rows_U in torch.arange(len(self.values), device=self.values.device).split(ROWS_AT_ONCE):
            touched_U = self.touched[rows_U]
            behind = touched_U < self.updates_done
            self._store(rows_U[behind], self._decayed(rows_U[behind], touched_U[behind]), draw_D)

    def _update(self, rows_U: Tensor, grad_UD: Tensor, draw_D: Tensor) -> None:
        touched_U = self.touched.index_select(0, rows_U)
        moment_U = self.second_moment.index_select(0, rows_U)
        moment_U *= ((self.updates_done - touched_U) * math.log(BETA_2)).exp_()
        moment_U.add_(torch.linalg.vector_norm(grad_UD, dim=1).square_(), alpha=(1 - BETA_2) / grad_UD.shape[1])
        self.second_moment[rows_U] = moment_U
        weight_UD = self._decayed(rows_U, touched_U)
        scale_U = (moment_U / (1 - BETA_2**self.updates_done)).sqrt_().add_(EPSILON)
        weight_UD.addcmul_(grad_UD, (-self.learning_rates[self.updates_done - 1] / scale_U)[:, None])
        self._store(rows_U, weight_UD, draw_D)

    @property
    def moments(self) -> dict[str, tuple[str, ...]]:
        return {self.name: ROW_MOMENTS}

    def state(self) -> dict[str, dict[str, Tensor]]:
        assert self.accumulated == 0
        return {self.name: {"second_moment": self.second_moment, "touched": self.touched}}

    def restore(self, steps_done: int, kept: dict[str, dict[str, Tensor]]) -> None:
        self.go_on(steps_done)
        self.second_moment, self.touched = (kept[self.name][moment] for moment in ROW_MOMENTS)

    def _decayed(self, rows_U: Tensor, touched_U: Tensor) -> Tensor:
        decay_U = (self.log_decay[self.updates_done] - self.log_decay.index_select(0, touched_U)).float().exp_()
        return self.values.index_select(0, rows_U).float().mul_(decay_U[:, None])

    def _draw(self) -> Tensor:
        """One draw for all rows: what counts is that a weight's draws at different updates have nothing to do with one
        another. It depends on the update alone, so the number of workers does not matter."""
        rng = np.random.default_rng((self.seed, self.updates_done))
        return torch.from_numpy(rng.integers(2**16, size=self.values.shape[1], dtype=np.int32)).to(self.values.device)

    def _store(self, rows_U: Tensor, weight_UD: Tensor, draw_D: Tensor) -> None:
        """Rounded: the upper half of a float32 is a bfloat16, and what is added to the lower carries over by chance."""
        weight_UD.view(torch.int32).add_(draw_D).bitwise_and_(-(2**16))
        _in_long_words(self.values).index_copy_(0, rows_U, _in_long_words(weight_UD.bfloat16()))
        self.touched[rows_U] = self.updates_done


def _in_long_words(rows: Tensor) -> Tensor:
    """The same memory in words of 16 bytes, where rows are made up of such: they are stored in less time than short."""
    return rows.view(torch.complex128) if rows.shape[1] * rows.element_size() % 16 == 0 else rows
