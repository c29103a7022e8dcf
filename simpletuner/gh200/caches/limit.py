"""How much all caches of a run may hold together with torch's own pools."""

from __future__ import annotations

import logging

from ..memory import hints as uvm
from ..memory.driver import CudaError, Driver, load_driver
from ..settings.cache_options import CacheOptions

logger = logging.getLogger("gh200.cache")


def shared_limit(options: CacheOptions) -> int | None:
    """The oversubscription ratio times the GPU's memory: the bound that caches share with torch's pools."""
    driver = load_driver()
    if not isinstance(driver, Driver):
        return None
    try:
        return int(driver.memory_info(uvm.cuda_device())[1] * options.oversubscription_ratio)
    except CudaError as error:
        logger.warning("GH200 caches: the GPU's memory size is unknown (%s); the ratio bounds nothing", error)
        return None
