"""What we say about a machine, claim by claim, and how each came out."""

from __future__ import annotations

from dataclasses import dataclass, field

SHOWN, REFUTED, NOT_TESTED, NOT_APPLICABLE = "shown", "refuted", "not tested", "not applicable"
VERDICTS = (SHOWN, REFUTED, NOT_TESTED, NOT_APPLICABLE)


@dataclass(frozen=True)
class Claim:
    """`part` is the part of the acceptance run that tries it."""

    id: str
    part: str
    text: str


@dataclass(frozen=True)
class Answer:
    """How one claim came out: what our documents lead to expect, beside what was seen."""

    claim: str
    verdict: str
    expected: str
    seen: str
    figures: dict[str, float] = field(default_factory=dict)


class NotTested(Exception):
    """What is left of a part cannot be tried here; the message says why."""


def judged(claim: str, right: bool, expected: str, seen: str, **measurements: float) -> Answer:
    """An answer by comparison."""
    return Answer(claim, SHOWN if right else REFUTED, expected, seen, measurements)


CLAIMS: tuple[Claim, ...] = (
    Claim("memory_mode", "machine", "the kernel and the driver agree on how HBM shows up: a NUMA node, CDMM, or not at all"),
    Claim("page_size", "machine", "our granule of 64 KB is a whole number of the kernel's pages"),
    Claim("concurrent_access", "machine", "CPU and GPU may use managed memory at the same time"),
    Claim("devices_by_uuid", "machine", "every GPU that CUDA sees is found in NVML by its UUID"),
    Claim("torch_allocator", "machine", "torch can put its own allocations into managed memory, by pools or by allocator keys"),
    Claim("fresh_thread", "threads", "a thread that never used CUDA has no context, and our calls work in it"),
    Claim("first_touch_managed", "first touch", "a page the CPU touches first goes where it prefers to be (NUMA mode), or stays with the CPU"),
    Claim("first_touch_ordinary", "first touch", "ordinary memory the CPU touches first lies on a node with CPUs"),
    Claim("hints_remembered", "hints", "the driver accepts and reports back preferred location and read-mostly"),
    Claim("hints_ordinary", "hints", "where the GPU uses the host's page tables, ordinary memory can be advised and prefetched"),
    Claim("one_call_for_many", "prefetch", "many ranges are moved to the GPU by what we call once per batch"),
    Claim("resident_is_cheap", "prefetch", "a prefetch of what is on the GPU already costs less than half of moving it"),
    Claim("evicted_for_plain", "pressure", "plain cudaMalloc gets the HBM that managed pages hold"),
    Claim("evicted_intact", "pressure", "pages that had to leave HBM keep their bytes"),
    Claim("child_has_no_memory", "forked child", "a forked child does not inherit managed memory: it dies of touching it"),
    Claim("child_calls_nothing", "forked child", "in a forked child our layer rejects instead of calling the driver"),
    Claim("allocation_beyond_hbm", "scale", "managed memory beyond HBM is written by the GPU and read back right by the CPU"),
    Claim("copies_intact", "bandwidth", "copies to the GPU and back keep every byte"),
    Claim("to_device_speed", "bandwidth", "pinned copies to the GPU come near the 375 GB/s that others published"),
    Claim("to_host_speed", "bandwidth", "pinned copies from the GPU come near the 297 GB/s that others published"),
    Claim("batch_ways", "moving a batch", "every way of moving a batch that placement can choose works here; their times are reported"),
    Claim("stock_out_of_memory", "trainings", "with HBM filled, stock training ends in torch's own out-of-memory error"),
    Claim("beyond_hbm_bits", "trainings", "with the same HBM filled, managed memory trains with stock's bits"),
    Claim("all_on_bits", "trainings", "with everything on, training has stock's bits"),
    Claim("larger_than_hbm", "large", "a model whose training state is larger than HBM trains in managed memory"),
)  # fmt: skip


# Claims about memory of the GPU's own, which a machine with one pool does not have.
OF_OWN_MEMORY = frozenset({
    "first_touch_managed", "one_call_for_many", "resident_is_cheap", "evicted_for_plain", "evicted_intact", "allocation_beyond_hbm", "to_device_speed",
    "to_host_speed", "stock_out_of_memory", "beyond_hbm_bits", "larger_than_hbm",
})  # fmt: skip


def complete(answers: dict[str, Answer], why: str, part: str | None = None, verdict: str = NOT_TESTED) -> None:
    """The claims (of a part) that have no answer yet get this one."""
    for claim in CLAIMS:
        if part in (None, claim.part):
            answers.setdefault(claim.id, Answer(claim.id, verdict, "", why))
