"""How much all caches of a run may hold together."""

from __future__ import annotations

import logging

from ..memory import hints as uvm
from ..memory.driver import CudaError, Driver, load_driver
from ..settings.cache_options import CacheOptions

logger = logging.getLogger("gh200.cache")


def byte_limit(options: CacheOptions) -> int | None:
    """The configured limit, or the oversubscription ratio times the GPU's memory, whichever is smaller."""
    bounds = [] if options.memory_limit is None else [options.memory_limit]
    driver = load_driver()
    if isinstance(driver, Driver):
        try:
            bounds.append(int(driver.memory_info(uvm.cuda_device())[1] * options.oversubscription_ratio))
        except CudaError as error:
            logger.warning("GH200 caches: the GPU's memory size is unknown (%s); the ratio bounds nothing", error)
    return min(bounds) if bounds else None
