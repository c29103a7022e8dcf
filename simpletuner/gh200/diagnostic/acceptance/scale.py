"""The two larger tests of the diagnostic as claims: managed memory beyond HBM, and copies against published speeds."""

from __future__ import annotations

from collections.abc import Iterator

from ..allocation import try_allocation
from ..bandwidth import IN, NEAR_ENOUGH, OUT, PINNED, PUBLISHED_GB_S, measure
from ..result import FAIL, SKIP
from .bench import Bench
from .claims import NOT_TESTED, Answer, NotTested, judged

CLAIM_OF = {IN: ("to_device_speed", PUBLISHED_GB_S[1]), OUT: ("to_host_speed", PUBLISHED_GB_S[0])}


def scale(bench: Bench) -> Iterator[Answer]:
    done = try_allocation(bench.device, bench.scale, bench.room, bench.tell)
    claim, expected = "allocation_beyond_hbm", f"{bench.scale:g} x HBM, every chunk right"
    figures = {"bytes": float(done.size_bytes), "hbm_bytes": float(done.hbm_bytes), "seconds": done.seconds}
    if done.status == SKIP or (done.status != FAIL and done.size_bytes <= done.hbm_bytes):
        yield Answer(claim, NOT_TESTED, expected, done.message, figures)
    else:
        yield judged(claim, done.status != FAIL, expected, done.message, **figures)


def bandwidth(bench: Bench) -> Iterator[Answer]:
    done = measure(bench.device, bench.room, bench.facts.gpus.coherent, bench.tell)
    if not done.rates:
        raise NotTested(done.message)
    figures = {f"{rate.path}, {rate.direction}": rate.median for rate in done.rates}
    for rate in (rate for rate in done.rates if rate.path == PINNED):
        claim, published = CLAIM_OF[rate.direction]
        expected = f"{published:g} GB/s published; at least {NEAR_ENOUGH:.0%} of it"
        seen = f"{rate.median:.1f} GB/s ({rate.lowest:.1f} to {rate.highest:.1f})"
        if bench.is_gh200:
            yield judged(claim, rate.median >= NEAR_ENOUGH * published, expected, seen, **figures)
        else:
            yield Answer(claim, NOT_TESTED, expected, f"{seen}; not judged: no GH200", figures)
