"""Where each kind of memory lives: HBM while it lasts, CPU memory for the rest, and nothing that relies on eviction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from ..memory.limits import format_size
from .cost import FOREACH_READS, Link, Traffic, offloaded_gradients, remote_state, streamed

WEIGHTS, GRADIENTS, OPTIMIZER, EMA = "weights", "gradients", "optimizer", "ema"
KINDS = (WEIGHTS, GRADIENTS, OPTIMIZER, EMA)
HBM, STREAMED, REMOTE = "HBM", "CPU memory, streamed", "CPU memory, mapped for the GPU"
# Buckets of the streamed step: large enough for the link, and two of them small beside HBM.
SMALLEST_BUCKET, LARGEST_BUCKET, BUCKET_SHARE = 1 << 20, 256 << 20, 256
# What a forward and backward pass needs is not known before it ran; until then so much of HBM is kept for it.
ACTIVATION_SHARE = 0.25


@dataclass(frozen=True)
class Need:
    """Bytes of each kind. `largest` is the state of the largest parameter, which is stepped in one piece; `window` counts
    the micro-batches of one accumulation window; `scratch` is what an optimizer that cannot be streamed needs at once.
    """

    weights: int
    gradients: int
    optimizer: int
    ema: int = 0
    activations: int = 0
    measured: bool = False
    largest: int = 0
    scratch: int = 0
    streamable: bool = True
    window: int = 1
    clipped: bool = True

    def of(self, kind: str) -> int:
        """Bytes of one kind."""
        return int(getattr(self, kind))


@dataclass(frozen=True)
class Capacity:
    """What the GPU has for this run, and what CPU memory may be taken of the machine."""

    hbm: int
    host: int
    link: Link = field(default_factory=Link)


@dataclass(frozen=True)
class Plan:
    """A place for every kind, and what that takes."""

    need: Need
    places: dict[str, str]
    bucket: int
    hbm: int
    host: int
    traffic: Traffic
    seconds: float

    @property
    def offloads(self) -> bool:
        """Whether anything is outside of HBM."""
        return any(place != HBM for place in self.places.values())

    def describe(self) -> str:
        """For the log: where everything is, and the predicted cost."""
        kinds = ", ".join(f"{kind} {format_size(self.need.of(kind))} in {place}" for kind, place in self.places.items())
        known = "measured" if self.need.measured else "estimated"
        text = f"{kinds}, activations {format_size(self.need.activations)} ({known})"
        return f"{text}; predicted offload {self.seconds:.3g} s per optimizer step" if self.offloads else text


@dataclass(frozen=True)
class DoesNotFit:
    """No placement exists; `missing` bytes more of `where` would allow one."""

    where: str
    missing: int


def bucket_bytes(largest: int, hbm: int) -> int:
    """State bytes of one bucket: two of them are the staging memory."""
    return max(largest, min(LARGEST_BUCKET, max(SMALLEST_BUCKET, hbm // BUCKET_SHARE)))


def make_plan(need: Need, capacity: Capacity) -> Plan | DoesNotFit:
    """The placement that fits and costs least; what is not needed (0 bytes) is in HBM."""
    plans = list(_placements(need, capacity))
    fitting = [plan for plan in plans if plan.hbm <= capacity.hbm and plan.host <= capacity.host]
    if fitting:
        return min(fitting, key=lambda plan: (plan.seconds, plan.host))
    least = min(plan.hbm for plan in plans)
    if least > capacity.hbm:
        return DoesNotFit("HBM", least - capacity.hbm)
    return DoesNotFit("CPU memory", min(plan.host for plan in plans if plan.hbm <= capacity.hbm) - capacity.host)


def _placements(need: Need, capacity: Capacity) -> Iterator[Plan]:
    for near in product((True, False), repeat=3):
        chosen = dict(zip((GRADIENTS, OPTIMIZER, EMA), near, strict=True))
        if all(here or need.of(kind) for kind, here in chosen.items()):
            yield placed(need, capacity, {kind for kind, here in chosen.items() if not here})


def placed(need: Need, capacity: Capacity, away: set[str]) -> Plan:
    """With these kinds in CPU memory; whether it fits is not asked."""
    stepped = STREAMED if need.streamable else REMOTE
    elsewhere = {GRADIENTS: REMOTE, OPTIMIZER: stepped, EMA: STREAMED}
    places = {kind: elsewhere[kind] if kind in away else HBM for kind in KINDS}
    bucket = bucket_bytes(need.largest, capacity.hbm) if away else 0
    resident = sum(need.of(kind) for kind in KINDS if kind not in away)
    # The pass is over when the optimizer steps, so its scratch memory takes the place of activations.
    scratch = bucket if places[OPTIMIZER] == STREAMED else need.scratch
    hbm = resident + 2 * bucket + max(need.activations, scratch)
    traffic = _traffic(need, away)
    host = sum(need.of(kind) for kind in away)
    return Plan(need, places, bucket, hbm, host, traffic, traffic.seconds(capacity.link))


def _traffic(need: Need, away: Iterable[str]) -> Traffic:
    found = Traffic()
    if GRADIENTS in away:
        found += offloaded_gradients(need.gradients, need.window, need.clipped)
    if OPTIMIZER in away:
        found += (streamed if need.streamable else remote_state)(need.optimizer)
    if EMA in away:
        found += streamed(need.ema)
    return found


def lower_bound(plan: Plan) -> int:
    """Bytes that any placement with these kinds in CPU memory moves: each once in, once out."""
    return 2 * plan.host


def managed_traffic(need: Need, hbm: int, everything: bool) -> Traffic:
    """About what `"state"` and `"all"` move: kinds that prefer the GPU migrate on every touch once they exceed HBM."""
    state = need.optimizer + need.ema if everything else 0
    near = need.weights + need.gradients + need.scratch + need.activations + state
    passes = 2 * need.weights + need.gradients
    step = need.weights + 3 * need.gradients + need.scratch + (2 * need.weights if need.ema else 0)
    touched = passes * need.window + step + FOREACH_READS * state
    migrated = Traffic(migrated=touched) if near > hbm else Traffic()
    return migrated if everything else migrated + remote_state(need.optimizer) + remote_state(need.ema)


@dataclass(frozen=True)
class Change:
    """Something an operator can set, and what the run would then need."""

    text: str
    need: Need


def cheapest_change(changes: Iterable[Change], capacity: Capacity) -> Change | None:
    """The first of them, cheapest first, with which the run fits."""
    return next((change for change in changes if isinstance(make_plan(change.need, capacity), Plan)), None)


def possible_changes(need: Need, *, checkpointing: bool, whole: bool, bf16_state: bool, lora: bool) -> Iterator[Change]:
    """By what they cost a training, least first; the later ones build on the earlier."""
    if not checkpointing:
        # Activations of one block instead of all of them.
        need = replace(need, activations=need.activations // 4)
        yield Change("set gradient_checkpointing to true", need)
    if not bf16_state and not lora:
        need = replace(need, optimizer=need.optimizer // 2, largest=need.largest // 2)
        yield Change('set optimizer to "adamw_bf16"', need)
    if whole:
        need = replace(need, weights=need.weights // 2, gradients=need.gradients // 2, ema=need.ema // 2)
        yield Change('set mixed_precision to "bf16"', need)
    need = replace(need, weights=need.weights // 2, gradients=need.gradients // 2)
    yield Change("set musubi_blocks_to_swap to half of the model's blocks, or ramtorch to true", need)
    if not lora:
        yield Change('set model_type to "lora"', replace(need, gradients=0, optimizer=0, ema=0, largest=0, scratch=0))
