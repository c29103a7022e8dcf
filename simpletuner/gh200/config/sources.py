"""Reads the raw config and the environment into one Settings object: config over environment over default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from pydantic import ValidationError

from .dataset_file import DatasetReader, entries_of_file
from .keys import AUTO, BLOCK_KEYS, DATASETS_FILE_KEY, INLINE_KEYS, is_misspelt_block, plain_key
from .problems import Problem, SettingsError, join_path, nearest, problems_of, shown
from .profile import CHOICES, CHOSEN
from .ramp_keys import RAMP_SIZES, check_ramp
from .schema import ENVIRONMENT, BatchSizes, CacheConfig, ConfigBlock, Optimizations, Settings

AnyBlock = TypeVar("AnyBlock", bound=ConfigBlock)
OPTIMIZATIONS = "gh200_optimizations"
CACHES = "cache_config"
DEFAULT = "default"
# Upstream has keys of these names, or might: they say nothing about where a key was meant to go.
_UPSTREAMS_TOO = frozenset({"cache_dir", "prefetch", "preload", "memory_limit_gb"})


def read_settings(
    raw: Mapping[str, object],
    environ: Mapping[str, str],
    raw_origins: Mapping[str, str] | None = None,
    dataset_file: list[object] | None = None,
) -> Settings:
    """The settings of a run, or a SettingsError with every problem found in any of the sources."""
    return _Reader(raw, environ, raw_origins or {}, dataset_file).settings()


def read_config_settings(config: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
    """The settings of a run with this config (`blocks.loaded_config`), for whoever judges it without a run."""
    return read_settings(config, environ, dataset_file=entries_of_file(config.get(DATASETS_FILE_KEY)))


def read_batch_sizes(config: Mapping[str, object]) -> BatchSizes:
    """Upstream's sizes, from its parsed config or from a config file, or what upstream would reject there."""
    try:
        return BatchSizes.model_validate(dict(config))
    except ValidationError as error:
        raise SettingsError(problems_of(error, BatchSizes, "")) from error


@dataclass
class _Reader:
    raw: Mapping[str, object]
    environ: Mapping[str, str]
    raw_origins: Mapping[str, str]
    dataset_file: list[object] | None
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    # Key path -> the place an operator wrote it, where that is another one.
    written: dict[str, str] = field(default_factory=dict)

    def settings(self) -> Settings:
        self._misspelt_blocks()
        self._misplaced_keys()
        caches = self._block(CACHES)
        optimizations = self._block(OPTIMIZATIONS)
        self._older_spellings(optimizations)
        self._removed_keys(optimizations)
        self._choose(caches, optimizations)
        self._hints_follow_caches(caches, optimizations)
        self._environment(optimizations)
        self._ramp_follows_sizes(optimizations)
        cache_model = self._validated(CacheConfig, CACHES, caches)
        ramp_model = self._validated(Optimizations, OPTIMIZATIONS, optimizations)
        if ramp_model is not None:
            problems, notes = check_ramp(ramp_model, OPTIMIZATIONS)
            self.problems += problems
            self.notes += notes
        profile = ramp_model is not None and ramp_model.profile == AUTO
        datasets = DatasetReader(self.raw, self.dataset_file, profile=profile)
        self.problems += datasets.problems
        self.notes += datasets.notes
        if self.problems or cache_model is None or ramp_model is None:
            raise SettingsError(self.problems)
        return Settings(
            caches=cache_model,
            optimizations=ramp_model,
            in_memory=MappingProxyType(datasets.in_memory),
            inline_datasets=datasets.inline_json,
            origins=MappingProxyType(self._complete_origins()),
            notes=tuple(self.notes),
        )

    def _misspelt_blocks(self) -> None:
        for key, value in self.raw.items():
            if is_misspelt_block(key, value):
                text = f"unknown block (value {shown(value)}).{nearest(key, sorted(BLOCK_KEYS))}"
                self.problems.append(Problem(key, text))

    def _misplaced_keys(self) -> None:
        for block, model in _MODELS.items():
            for key in model.model_fields:
                if self.raw.get(key) is not None and key not in BLOCK_KEYS | _UPSTREAMS_TOO:
                    self.problems.append(Problem(key, f'belongs inside the block "{block}"'))

    def _block(self, name: str) -> dict[str, object]:
        """A copy of one block without empty values, each of its keys marked with where the block came from."""
        value = self.raw.get(name)
        if value is None:
            return {}
        short = name == OPTIMIZATIONS
        if short and value == AUTO:
            value = {"profile": AUTO}
        if not isinstance(value, Mapping):
            wanted = f"a block of keys (a JSON object){' or ' + shown(AUTO) if short else ''}"
            self.problems.append(Problem(name, f"must be {wanted}; got {shown(value)}"))
            return {}
        block: dict[str, object] = {}
        for written, item in value.items():
            key = plain_key(written)
            if key in block:
                self.problems.append(Problem(join_path(name, key), f'given twice, as "{key}" and as "--{key}"'))
            if item is not None:
                block[key] = item
                self.origins[join_path(name, key)] = self._origin(name)
        return block

    def _origin(self, key: str) -> str:
        return self.raw_origins.get(key, "training config")

    def _older_spellings(self, block: dict[str, object]) -> None:
        switch = self.raw.get("use_gh200_trainer")
        if switch is not None:
            self._adopt(block, "use_gh200_trainer", "enable_uvm_hints", switch)
            if _meaning("enable_uvm_hints", switch) is False:
                block.setdefault("enable_batch_size_rampup", False)
        size = self.raw.get("initial_effective_batch_size")
        if size is not None:
            self._adopt(block, "initial_effective_batch_size", "initial_effective_batch_size", size)

    def _removed_keys(self, block: dict[str, object]) -> None:
        """Keys of v1: where another one has taken over a run goes on, where the schedule would differ it does not."""
        if block.pop("uvm_log_interval", None) is not None:
            self.origins.pop(join_path(OPTIMIZATIONS, "uvm_log_interval"))
            self.notes.append('"uvm_log_interval" is no longer a key: use "telemetry_interval" (seconds); 0 is off')
        if block.pop("batch_rampup_increment", None) is not None:
            path = join_path(OPTIMIZATIONS, "batch_rampup_increment")
            self.problems.append(Problem(path, 'no longer a key: write the stairs as rows of "batch_rampup_table"'))

    def _choose(self, caches: dict[str, object], block: dict[str, object]) -> None:
        """What the profile chooses, for keys that are not given."""
        if block.get("profile") != AUTO:
            return
        switch = block.get("enable_uvm_hints", self.environ.get("SIMPLETUNER_GH200_ENABLE_UVM_HINTS", "").strip())
        hints_off = switch != "" and _meaning("enable_uvm_hints", switch) is False
        ramp = any(key in block for key in RAMP_SIZES)
        for path, (value, why) in CHOICES.items():
            name, _, key = path.partition(".")
            given = caches if name == CACHES else block
            if key in given or (ramp and key == "enable_batch_size_rampup"):
                continue
            if hints_off and name == CACHES:
                self.origins[path] = f"{CHOSEN}enable_uvm_hints is off"
                continue
            given[key], self.origins[path] = value, f"{CHOSEN}{why}"

    def _adopt(self, block: dict[str, object], old: str, key: str, value: object) -> None:
        path = join_path(OPTIMIZATIONS, key)
        if key in block and _meaning(key, block[key]) != _meaning(key, value):
            text = f"{shown(value)} here, but {path} says {shown(block[key])}; remove one (this is the older spelling)"
            self.problems.append(Problem(old, text))
            return
        self.notes.append(f'"{old}" is the older spelling; write "{key}" inside "{OPTIMIZATIONS}"')
        if key not in block:
            block[key] = value
            self.origins[path] = f'{self._origin(old)}, older spelling "{old}"'
            self.written[path] = old

    def _hints_follow_caches(self, caches: dict[str, object], block: dict[str, object]) -> None:
        unified = [key for key in ("vae_cache_type", "text_cache_type") if caches.get(key) == "unified_memory"]
        if not unified:
            return
        if "enable_uvm_hints" not in block:
            block["enable_uvm_hints"] = True
            self.origins[join_path(OPTIMIZATIONS, "enable_uvm_hints")] = join_path(CACHES, unified[0])
        elif _meaning("enable_uvm_hints", block["enable_uvm_hints"]) is False:
            names = " and ".join(join_path(CACHES, key) for key in unified)
            self.notes.append(f"{OPTIMIZATIONS}.enable_uvm_hints is off, so {names} has no effect: upstream's caches")

    def _environment(self, block: dict[str, object]) -> None:
        for variable, key in ENVIRONMENT.items():
            text = self.environ.get(variable, "").strip()
            if text and key not in block:
                block[key] = text
                path = join_path(OPTIMIZATIONS, key)
                self.origins[path] = self.written[path] = f"environment variable {variable}"
        prefixes = ("GH200_UVM_", "SIMPLETUNER_GH200_")
        for variable in sorted(name for name in self.environ if name.startswith(prefixes) and name not in ENVIRONMENT):
            self.notes.append(f"environment variable {variable} is not one of ours.{nearest(variable, ENVIRONMENT)}")

    def _ramp_follows_sizes(self, block: dict[str, object]) -> None:
        sizes = [key for key in RAMP_SIZES if key in block]
        if sizes and "enable_batch_size_rampup" not in block:
            block["enable_batch_size_rampup"] = True
            path = join_path(OPTIMIZATIONS, "enable_batch_size_rampup")
            self.origins[path] = join_path(OPTIMIZATIONS, sizes[0])
        switch, shape = "enable_batch_size_rampup", join_path(OPTIMIZATIONS, "batch_rampup_shape")
        if block.get("batch_rampup_shape") == "measured" and _meaning(switch, block.get(switch)) is True:
            block.setdefault("measure_gradient_noise_scale", True)
            self.origins.setdefault(join_path(OPTIMIZATIONS, "measure_gradient_noise_scale"), shape)

    def _validated(self, model: type[AnyBlock], where: str, block: dict[str, object]) -> AnyBlock | None:
        try:
            return model.model_validate(block)
        except ValidationError as error:
            found = problems_of(error, model, where)
            self.problems += [replace(problem, path=self.written.get(problem.path, problem.path)) for problem in found]
            return None

    def _complete_origins(self) -> dict[str, str]:
        paths = [join_path(name, key) for name, model in _MODELS.items() for key in model.model_fields]
        complete = {path: self.origins.get(path, DEFAULT) for path in paths}
        inline = {key: self._origin(key) for key in INLINE_KEYS if self.raw.get(key) is not None}
        return complete | inline


def _meaning(key: str, value: object) -> object:
    """A value of `gh200_optimizations` as its model reads it; as it was written where the model rejects it."""
    try:
        return getattr(Optimizations.model_validate({key: value}), key)
    except ValidationError:
        return value


_MODELS: dict[str, type[ConfigBlock]] = {CACHES: CacheConfig, OPTIMIZATIONS: Optimizations}
