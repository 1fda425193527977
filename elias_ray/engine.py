"""One training step: the encoder in DeepSpeed, the tables (W_C, W_L, A) in their own AdamW.

The only module that imports deepspeed, and only where the encoder is trained. Learning rates are what the config says,
whatever the number of workers.
"""

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from elias_ray.clock import timed
from elias_ray.errors import UserError
from elias_ray.table_optimizer import MOMENTS, RowOptimizer, TableOptimizer
from elias_ray.workers import Workers

NO_DECAY = ("bias", "norm.weight", "LayerNorm.weight")


@dataclass(frozen=True)
class Optimisation:
    lr_encoder: float
    lr_classifiers: float  # of W_C, W_L and A
    weight_decay: float
    total_steps: int
    warmup: float  # part of the steps
    clip: float  # norm of the encoder's gradient
    zero_stage: int

    def rates_of_updates(self, update_every: int) -> list[float]:
        """Of a table that is updated every so many steps, and behind the last."""
        updates = [*range(update_every, self.total_steps, update_every), self.total_steps]
        return [self.lr_classifiers * self.factor(steps_done - 1) for steps_done in updates]

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
        encoder: nn.Module | None,
        tables: list[TableOptimizer | RowOptimizer],
        workers: Workers,
        plan: Optimisation,
    ) -> None:
        """Without an `encoder` phi is not trained."""
        self.workers, self.plan, self.steps_done = workers, plan, 0
        self.encoder = _initialize(encoder, plan) if encoder is not None else None
        self.tables = tables

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
        with timed("backward"):
            if self.encoder is None:
                torch.autograd.backward(loss)
            else:
                self.encoder.backward(loss)
        if self.encoder is not None:
            with timed("update of phi"):
                for group in self.encoder.optimizer.param_groups:
                    group["lr"] = factor * self.plan.lr_encoder
                self.encoder.step()
        with timed("update of the tables"):
            self.steps_done += 1
            for tables in self.tables:
                tables.step()
                if self.steps_done == self.plan.total_steps:
                    tables.finish()
        return float(losses_W.mean()), told_W2[:, 1].int().tolist()

    @property
    def complete(self) -> bool:
        """Whether no gradient waits for an update."""
        return not any(tables.accumulated for tables in self.tables)

    def encoder_state(self) -> dict[str, Tensor]:
        """Parameters and their moments by name, whole; all workers at once. Empty where phi is not trained."""
        state: dict[str, Tensor] = {}
        if self.encoder is None:
            return state
        self._link_moments()
        for name, parameter in self.encoder.module.named_parameters():
            state[name] = parameter.detach()
            state.update({f"{name}.{moment}": self._moment(parameter, moment) for moment in MOMENTS})
        return state

    @property
    def moments(self) -> dict[str, tuple[str, ...]]:
        """What is kept of each table for its optimizer, by name."""
        return {name: kept for tables in self.tables for name, kept in tables.moments.items()}

    def tables_state(self) -> dict[str, dict[str, Tensor]]:
        """The same as tensors."""
        return {name: kept for tables in self.tables for name, kept in tables.state().items()}

    def restore(self, steps_done: int, encoder: dict[str, Tensor], moments: dict[str, dict[str, Tensor]]) -> None:
        """Go on behind so many steps, with parameters that are there already and these moments."""
        self.steps_done = steps_done
        for tables in self.tables:
            tables.restore(steps_done, moments)
        if self.encoder is not None:
            self._restore_encoder(encoder)

    def close(self) -> None:
        """Give the parameters back as plain ones and free what training needed."""
        if self.encoder is not None:
            self.encoder.destroy()

    def _restore_encoder(self, kept: dict[str, Tensor]) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state

        assert self.encoder is not None
        inner = self.encoder.optimizer.optimizer if self.plan.zero_stage else self.encoder.optimizer
        for group in inner.param_groups:
            for parameter in group["params"]:  # with ZeRO, this worker's part of all of them in one
                moments = {moment: torch.zeros_like(parameter, requires_grad=False) for moment in MOMENTS}
                inner.state[parameter] = {"step": torch.tensor(float(self.steps_done)), **moments}
        self._link_moments()
        for name, parameter in self.encoder.module.named_parameters():
            for moment in MOMENTS:
                value = kept[f"{name}.{moment}"].to(parameter.device)
                if self.plan.zero_stage:
                    safe_set_full_optimizer_state(parameter, value, moment)
                else:
                    inner.state[parameter][moment].copy_(value)

    def _link_moments(self) -> None:
        """Let DeepSpeed find moments by parameter: it does in its first step, but only of the first group."""
        if self.plan.zero_stage:
            assert self.encoder is not None
            self.encoder.optimizer._hp_optimizer_states_linked = False
            self.encoder.optimizer._lazy_init_hp_params_optimizer_state()

    def _moment(self, parameter: Tensor, moment: str) -> Tensor:
        from deepspeed.utils import safe_get_full_optimizer_state

        if self.plan.zero_stage:
            whole: Tensor = safe_get_full_optimizer_state(parameter, moment)
            return whole
        assert self.encoder is not None
        kept: Tensor = self.encoder.optimizer.state[parameter][moment]
        return kept


def parameter_groups(encoder: nn.Module, plan: Optimisation) -> list[dict[str, Any]]:
    """By name, every parameter in exactly one group; no decay on biases and norm gains."""
    groups: dict[float, dict[str, Any]] = {}
    for name, parameter in encoder.named_parameters():
        decay = 0.0 if name.endswith(NO_DECAY) else plan.weight_decay
        groups.setdefault(decay, {"params": [], "lr": plan.lr_encoder, "weight_decay": decay})["params"].append(
            parameter
        )
    return list(groups.values())


def _initialize(encoder: nn.Module, plan: Optimisation) -> Any:
    # Where the parameters are, which need not be where DeepSpeed would look for itself.
    os.environ["DS_ACCELERATOR"] = next(encoder.parameters()).device.type
    import deepspeed  # sets things up when imported, so not before a worker is ready for it

    # It would be compiled at run time, for 80 s, and only where there is a compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    engine, *_ = deepspeed.initialize(
        model=encoder,
        optimizer=torch.optim.AdamW(parameter_groups(encoder, plan), fused=True),
        dist_init_required=False,
        config={
            "train_micro_batch_size_per_gpu": 1,  # only its own throughput figure uses it
            "zero_optimization": {"stage": plan.zero_stage},
            "gradient_clipping": plan.clip,
            "steps_per_print": 2**31,
        },
    )
    return engine
