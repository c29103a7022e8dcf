"""The random generators that Accelerate puts into a checkpoint, as they were at one moment."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Self

import numpy
import torch


@dataclass(frozen=True)
class RandomStates:
    of_python: Any
    of_numpy: Any
    of_torch: torch.Tensor
    of_cuda: list[torch.Tensor]

    @classmethod
    def now(cls) -> Self:
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return cls(random.getstate(), numpy.random.get_state(), torch.get_rng_state(), cuda)

    def put_back(self) -> None:
        random.setstate(self.of_python)
        numpy.random.set_state(self.of_numpy)
        torch.set_rng_state(self.of_torch)
        if self.of_cuda:
            torch.cuda.set_rng_state_all(self.of_cuda)
