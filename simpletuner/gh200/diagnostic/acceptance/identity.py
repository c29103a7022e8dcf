"""Which machine it is: how HBM shows up, pages, attributes, devices by UUID, and how torch would go beyond HBM."""

from __future__ import annotations

from collections.abc import Iterator

from ...memory.driver import DeviceAttribute
from ...memory.pages import PAGE
from .bench import Bench
from .claims import Answer, judged


def machine(bench: Bench) -> Iterator[Answer]:
    told, seen = bench.facts.memory_mode, bench.mode
    yield judged("memory_mode", told == seen, "both say the same", f"kernel and NVML: {told}; driver: {seen}")
    page = bench.facts.host.page_bytes
    yield judged("page_size", PAGE % page == 0, "4 or 64 KB pages", f"{page // 1024} KB pages", page_bytes=page)
    concurrent = bench.attribute(DeviceAttribute.CONCURRENT_MANAGED_ACCESS)
    yield judged("concurrent_access", concurrent == 1, "attribute 89 is 1", f"it is {concurrent}")
    beyond = bench.facts.software.beyond_hbm
    yield judged("torch_allocator", beyond.possible, "pools of stock torch, or a build with use_uvm keys", beyond.text)
    # Last, as a driver that does not tell a UUID ends this part.
    known = {gpu.uuid: gpu.index for gpu in bench.facts.gpus.devices if gpu.uuid}
    uuids = [bench.driver.device_uuid(device) for device in range(bench.driver.device_count)]
    shown = [
        f"CUDA {device} is NVML {known[uuid]} ({uuid})"
        if uuid in known
        else f"CUDA {device} ({uuid}) is unknown to NVML"
        for device, uuid in enumerate(uuids)
    ]
    yield judged("devices_by_uuid", set(uuids) <= set(known), "one entry each", "; ".join(shown))
