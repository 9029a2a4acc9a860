"""What is measured: models, how many images at once, on which workers; and the figures that are asked for."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.images.checkpoints import MIDDLE, SHIPPED

NUM_STEPS = 49
SHIFT, TEXT_GUIDANCE, GUIDANCE_START, GUIDANCE_END = 3.0, 4.0, 0.4, 1.0
"""As published: 90 passes of the 147 that three branches in each step take."""


@dataclass(frozen=True)
class Placing:
    """`model` on workers of its own under the name `name`: the first has `threads`; `apart`: the branch without text is
    on a second one."""

    name: str
    model: str
    threads: int = 1
    apart: bool = False

    @property
    def num_workers(self) -> int:
        return 2 if self.apart else 1


@dataclass(frozen=True)
class Case:
    """Images of `model`, asked for at the same moment, over several numbers of them."""

    model: str
    batches: tuple[int, ...]
    num_rounds: int
    num_steps: int = NUM_STEPS

    def name(self, batch: int) -> str:
        return f"{self.model}, {self.num_steps} steps, {batch} at once"


BATCHES = (1, 2, 4)
MIDDLE_THREADS, MIDDLE_APART = f"{MIDDLE.name}-two-threads", f"{MIDDLE.name}-apart"
ROUNDS_OF_PLACINGS = 6


def cases(quick: bool) -> list[Case]:
    if quick:
        return [Case(SHIPPED, BATCHES, 2)]
    return [Case(SHIPPED, BATCHES, 12), Case(MIDDLE.name, BATCHES, 3)]


def placings(quick: bool) -> list[Placing]:
    """The last two are compared with one another, as well."""
    if quick:
        return [Placing(SHIPPED, SHIPPED)]
    return [
        Placing(SHIPPED, SHIPPED),
        Placing(MIDDLE.name, MIDDLE.name),
        Placing(MIDDLE_THREADS, MIDDLE.name, threads=2),
        Placing(MIDDLE_APART, MIDDLE.name, apart=True),
    ]


MIN_SPEED = {1: 1.5, 4: 2.0}
"""Images per second, served over the loop with all branches, by how many are asked for at once."""
