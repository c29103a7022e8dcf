"""Three short trainings beside each other: stock, managed with HBM filled until stock fails, and everything on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from statistics import median

from ..status import gb
from .bench import Bench
from .claims import NOT_TESTED, Answer, NotTested, judged
from .trainings import Order, Trained

# Of torch's own peak: what is left free for it. Stock must fail at one of these.
SHARES = (0.5, 0.2, 0.05)
MARGIN = 1.1
GRACE = 60.0
BITS = "losses, every update and the weights equal stock's"
LARGER = 1.25
HOST_NEEDS = 2 << 30
OUT_OF_TIME = "cut: the minutes were over before it could end (--minutes)"


class Runs:
    """The trainings of this acceptance run, each only begun where what was seen so far says that it can end in time."""

    def __init__(self, bench: Bench) -> None:
        if bench.trainer is None:
            raise NotTested(bench.untrained)
        if missing := bench.trainer.missing():
            raise NotTested(missing)
        if (available := bench.available()) < HOST_NEEDS:
            raise NotTested(f"a training needs about {gb(HOST_NEEDS)} of RAM, {gb(available)} is available")
        self._bench, self._trainer = bench, bench.trainer
        self._longest = 0.0

    def train(self, order: Order) -> Trained:
        """Runs one training, or raises NotTested."""
        left = self._bench.left()
        if left <= self._longest:
            raise NotTested(OUT_OF_TIME)
        self._bench.tell(f"training: {order.name}")
        try:
            trained = self._trainer.train(order, left + GRACE)
        except TimeoutError:
            raise NotTested(OUT_OF_TIME) from None
        self._bench.trained.append(trained)
        if not trained.code:
            self._longest = max(self._longest, trained.seconds)
        return trained


def trainings(bench: Bench) -> Iterator[Answer]:
    """Trains with and without managed memory and compares."""
    runs = Runs(bench)
    stock = runs.train(Order("stock"))
    if stock.code:
        raise NotTested(f"stock training itself fails here: {stock.complaint}")
    if not bench.platform.one_pool:
        yield from _beyond_hbm(runs, stock)
    yield _compared("all_on_bits", runs, stock, runs.train(Order("everything on", everything=True)))


def _beyond_hbm(runs: Runs, stock: Trained) -> Iterator[Answer]:
    crowded = _crowded(runs, stock)
    left = f"{gb(crowded.left_bytes or 0)} of HBM left free, torch's own peak is {gb(stock.torch_bytes)}"
    yield judged("stock_out_of_memory", crowded.out_of_memory, "CUDA out of memory", f"{left}: {_ending(crowded)}")
    if crowded.out_of_memory:
        managed = runs.train(Order("managed, HBM filled", managed=True, leave_bytes=crowded.left_bytes))
        yield _compared("beyond_hbm_bits", runs, stock, managed)


def _crowded(runs: Runs, stock: Trained) -> Trained:
    """Plain memory is added until stock fails, by steps of what stock itself had at its peak."""
    crowded = stock
    for share in SHARES:
        leave = int(MARGIN * stock.driver_bytes + share * stock.torch_bytes)
        crowded = runs.train(Order("stock, HBM filled", leave_bytes=leave))
        if crowded.code:
            break
    return crowded


def _compared(claim: str, runs: Runs, stock: Trained, other: Trained) -> Answer:
    if other.code:
        return judged(claim, False, BITS, f"the training failed: {other.complaint}")
    if other.bits == stock.bits:
        times = f"a step took {_step(other):.2f} s, stock's {_step(stock):.2f} s"
        return judged(claim, True, BITS, f"equal over {len(stock.losses)} micro-batches; {times}")
    again = runs.train(Order("stock again"))
    if again.bits != stock.bits:
        seen = f"two stock trainings differ here too ({_difference(stock, again)}): bit-identity cannot be judged"
        return Answer(claim, NOT_TESTED, BITS, seen)
    return judged(claim, False, BITS, _difference(stock, other))


def _difference(one: Trained, other: Trained) -> str:
    for number, (mine, theirs) in enumerate(zip_longest(one.losses, other.losses, fillvalue="none"), 1):
        if mine != theirs:
            return f"loss of micro-batch {number}: {mine} and {theirs}"
    for number, (mine, theirs) in enumerate(zip_longest(one.updates, other.updates, fillvalue="none"), 1):
        if mine != theirs:
            return f"weights after update {number}"
    return f"weights on disk: {', '.join(sorted(dict(one.weights.items() ^ other.weights.items())))[:200]}"


def _ending(trained: Trained) -> str:
    if trained.out_of_memory:
        return "CUDA out of memory"
    return f"it failed otherwise: {trained.complaint}" if trained.code else "it trained all the same"


def _step(trained: Trained) -> float:
    """The first update compiles, loads and allocates."""
    return median(trained.step_seconds[1:] or trained.step_seconds or (0.0,))


def large(bench: Bench) -> Iterator[Answer]:
    """Trains a model whose state exceeds HBM."""
    if not bench.large:
        raise NotTested("not asked for (--large)")
    runs = Runs(bench)
    hbm = bench.hbm
    order = Order("larger than HBM", managed=True, state_bytes=int(LARGER * hbm))
    trained = runs.train(order)
    expected = f"{gb(int(LARGER * hbm))} of weights, gradients and Adam on {gb(hbm)} of HBM; not compared with anything"
    finite = bool(trained.losses) and not any(word in ("nan", "inf", "-inf") for word in trained.losses)
    seen = f"{len(trained.updates)} updates, {_step(trained):.2f} s each" if not trained.code else trained.complaint
    yield judged("larger_than_hbm", not trained.code and finite, expected, seen)
