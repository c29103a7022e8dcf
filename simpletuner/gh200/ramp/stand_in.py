"""The ramp's methods in the place of upstream's."""

from __future__ import annotations

from .. import stand_in
from ..stand_in import instead, instead_where_present
from .schedule import RampError

__all__ = ["StandIn", "instead", "instead_where_present"]


class StandIn(stand_in.StandIn):
    feature, refusal = "the gradient accumulation ramp", RampError
