"""One training step: dense parameters (encoder, W_C) in DeepSpeed, the tables (W_L, A) in their own AdamW.

The only module that imports deepspeed. Learning rates are what the config says, whatever the number of workers.
"""

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from elias_ray.clock import timed
from elias_ray.errors import UserError
from elias_ray.table_optimizer import MOMENTS, ROW_MOMENTS, RowOptimizer, Table, TableOptimizer
from elias_ray.workers import Workers

NO_DECAY = ("bias", "norm.weight", "LayerNorm.weight")


@dataclass(frozen=True)
class Optimisation:
    lr_encoder: float
    lr_classifiers: float  # of W_C, W_L and A
    weight_decay: float
    total_steps: int
    warmup: float  # part of the steps
    clip: float  # norm of the dense gradient
    update_every: int  # k, of the tables
    zero_stage: int

    def factor(self, step: int) -> float:
        """Of the learning rates: linear warm-up to 1, then linear decay to 0 behind the last step."""
        warmup_steps = self.warmup * self.total_steps
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        return max(0.0, (self.total_steps - step) / max(1.0, self.total_steps - warmup_steps))


class NotFiniteError(UserError):
    """A loss that is infinite or not a number."""


class Engine:
    def __init__(
        self,
        dense: nn.Module,
        tables: list[Table],
        workers: Workers,
        plan: Optimisation,
        rows: RowOptimizer | None = None,
    ) -> None:
        """`dense` is a module whose parameters are named encoder.* and cluster_classifiers.*

        `rows` is of a table that is updated in backward.
        """
        self.workers, self.plan, self.steps_done = workers, plan, 0
        self.groups = parameter_groups(dense, plan)
        self.dense = _initialize(dense, torch.optim.AdamW(self.groups, fused=True), plan)
        self.tables, self.rows = TableOptimizer(tables, plan.update_every), rows

    def step(self, loss: Tensor, signal: int = 0) -> tuple[float, list[int]]:
        """Backward and update; every worker at once. The loss of all points, and the signal of every worker.

        A loss that is not finite stops all of them before any update.
        """
        told_W2 = self.workers.gather(torch.stack([loss.detach(), loss.new_tensor(float(signal))])[None])
        losses_W = told_W2[:, 0]
        if not losses_W.isfinite().all():
            rank = int((~losses_W.isfinite()).nonzero()[0])
            raise NotFiniteError(
                f"the loss of step {self.steps_done} is {losses_W[rank].item()} on worker {rank}; it updated nothing"
            )
        factor = self.plan.factor(self.steps_done)
        if self.rows is not None:
            self.rows.begin(self.steps_done)
        for group in self.dense.optimizer.param_groups:
            group["lr"] = factor * group["peak_lr"]
        with timed("backward"):
            self.dense.backward(loss)
        with timed("update of phi and W_C"):
            self.dense.step()
        with timed("update of the tables"):
            self.tables.step(factor * self.plan.lr_classifiers)
            self.steps_done += 1
            if self.steps_done == self.plan.total_steps:
                self.tables.flush(factor * self.plan.lr_classifiers)
                if self.rows is not None:
                    self.rows.settle()
        return float(losses_W.mean()), told_W2[:, 1].int().tolist()

    def dense_state(self) -> dict[str, Tensor]:
        """Parameters and their moments by name, whole; all workers at once."""
        state = {}
        self._link_moments()
        for name, parameter in self.dense.module.named_parameters():
            state[name] = parameter.detach()
            state.update({f"{name}.{moment}": self._moment(parameter, moment) for moment in MOMENTS})
        return state

    @property
    def moments(self) -> dict[str, tuple[str, ...]]:
        """What is kept of each table for its optimizer, by name."""
        kept: dict[str, tuple[str, ...]] = {table.name: MOMENTS for table in self.tables.tables}
        return kept | ({self.rows.name: ROW_MOMENTS} if self.rows is not None else {})

    def tables_state(self) -> dict[str, dict[str, Tensor]]:
        """The same as tensors."""
        return self.tables.state() | ({self.rows.name: self.rows.state()} if self.rows is not None else {})

    def restore(self, steps_done: int, dense: dict[str, Tensor], tables: dict[str, dict[str, Tensor]]) -> None:
        """Go on behind so many steps, with parameters that are there already and these moments."""
        from deepspeed.utils import safe_set_full_optimizer_state

        self.steps_done = steps_done
        self.tables.restore(-(-steps_done // self.plan.update_every), tables)
        if self.rows is not None:
            self.rows.restore(tables[self.rows.name])
        inner = self.dense.optimizer.optimizer if self.plan.zero_stage else self.dense.optimizer
        for group in inner.param_groups:
            for parameter in group["params"]:  # with ZeRO, this worker's part of all of them in one
                moments = {moment: torch.zeros_like(parameter, requires_grad=False) for moment in MOMENTS}
                inner.state[parameter] = {"step": torch.tensor(float(steps_done)), **moments}
        self._link_moments()
        for name, parameter in self.dense.module.named_parameters():
            for moment in MOMENTS:
                value = dense[f"{name}.{moment}"].to(parameter.device)
                if self.plan.zero_stage:
                    safe_set_full_optimizer_state(parameter, value, moment)
                else:
                    inner.state[parameter][moment].copy_(value)

    def _link_moments(self) -> None:
        """Let DeepSpeed find moments by parameter: it does in its first step, but only of the first group."""
        if self.plan.zero_stage:
            self.dense.optimizer._hp_optimizer_states_linked = False
            self.dense.optimizer._lazy_init_hp_params_optimizer_state()

    def _moment(self, parameter: Tensor, moment: str) -> Tensor:
        from deepspeed.utils import safe_get_full_optimizer_state

        if self.plan.zero_stage:
            whole: Tensor = safe_get_full_optimizer_state(parameter, moment)
            return whole
        kept: Tensor = self.dense.optimizer.state[parameter][moment]
        return kept

    def close(self) -> None:
        """Give the parameters back as plain ones and free what training needed."""
        self.dense.destroy()


def parameter_groups(dense: nn.Module, plan: Optimisation) -> list[dict[str, Any]]:
    """By name, every parameter in exactly one group; no decay on biases and norm gains."""
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in dense.named_parameters():
        section = name.split(".")[0]
        assert section in ("encoder", "cluster_classifiers"), name
        lr = plan.lr_encoder if section == "encoder" else plan.lr_classifiers
        decay = 0.0 if name.endswith(NO_DECAY) else plan.weight_decay
        group = groups.setdefault((lr, decay), {"params": [], "lr": lr, "peak_lr": lr, "weight_decay": decay})
        group["params"].append(parameter)
    return list(groups.values())


def _initialize(dense: nn.Module, optimizer: torch.optim.Optimizer, plan: Optimisation) -> Any:
    # Where the parameters are, which need not be where DeepSpeed would look for itself.
    os.environ["DS_ACCELERATOR"] = next(dense.parameters()).device.type
    import deepspeed  # sets things up when imported, so not before a worker is ready for it

    # It would be compiled at run time, for 80 s, and only where there is a compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    engine, *_ = deepspeed.initialize(
        model=dense,
        optimizer=optimizer,
        dist_init_required=False,
        config={
            "train_micro_batch_size_per_gpu": 1,  # only its own throughput figure uses it
            "zero_optimization": {"stage": plan.zero_stage},
            "gradient_clipping": plan.clip,
            "steps_per_print": 2**31,
        },
    )
    return engine
