"""What the unified-memory code has to know about a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .schema import AccessPattern, PlacementName, Settings


@dataclass(frozen=True)
class CacheOptions:
    """What the unified-memory code has to know; the settings are turned into one of these at start-up."""

    kinds: frozenset[str] = frozenset()
    hints: bool = False
    access_pattern: AccessPattern = "gpu_first"
    oversubscription_ratio: float = 5.0
    memory_limit: int | None = None
    placement: PlacementName = "auto"
    prefetch: bool = True
    preload: bool = True
    adaptive_prefetch: bool = False
    cache_dir: str | None = None
    persistent: bool = True

    @classmethod
    def from_settings(cls, settings: Settings, *, upstream_prefetches: bool = False) -> CacheOptions:
        """Image embeddings and distillation pairs have no setting of their own; they follow the VAE cache."""
        kinds = {"vae": {"vae", "image_embed", "distillation"}, "text": {"text"}}
        on = set().union(*(kinds[cache] for cache in ("vae", "text") if settings.uses_unified_memory(cache)))
        limit = settings.caches.memory_limit_gb
        return cls(
            kinds=frozenset(on),
            hints=settings.optimizations.enable_uvm_hints,
            access_pattern=settings.optimizations.uvm_access_pattern,
            oversubscription_ratio=settings.optimizations.uvm_oversubscription_ratio,
            memory_limit=None if limit is None else int(limit * 10**9),
            placement=settings.caches.placement,
            prefetch=settings.caches.prefetch and not upstream_prefetches,
            preload=settings.caches.preload,
            adaptive_prefetch=settings.caches.adaptive_prefetch,
            cache_dir=settings.caches.cache_dir,
            persistent=settings.caches.persistent_cache,
        )
