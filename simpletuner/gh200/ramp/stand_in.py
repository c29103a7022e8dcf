"""The ramp's methods in the place of upstream's."""

from __future__ import annotations

from .. import stand_in
from ..stand_in import instead
from .schedule import RampError

__all__ = ["StandIn", "instead"]


class StandIn(stand_in.StandIn):
    feature, refusal = "the gradient accumulation ramp", RampError
