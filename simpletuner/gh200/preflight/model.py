"""The model and the VAE a config names: where they come from, whether they are there, how large they are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ..config.problems import Problem
from .report import Kind
from .upstream_keys import Upstream

MODEL, VAE = "pretrained_model_name_or_path", "pretrained_vae_model_name_or_path"
# Upstream's default VAE is SDXL's; for other families it takes the model's own.
_SDXL_VAE = ("sdxl", "pixart_sigma", "kolors")
_LOCAL_NAMES = ("models", "model", "checkpoints", "weights", "build", "data", "output", "outputs", "jobs")
_ADAPTED = ("to_q.weight", "to_k.weight", "to_v.weight", "to_out.0.weight")


@dataclass(frozen=True)
class WeightSource:
    """`where` is "directory", "file", "hub cache", "hub" or "missing"."""

    name: str
    where: str
    directory: Path | None = None

    def __str__(self) -> str:
        words = {
            "hub": "to be downloaded from huggingface.co",
            "hub cache": "in the hub's cache",
            "missing": "not there",
        }
        return f"{self.name} ({words.get(self.where, self.where)})"


def find(name: str, environ: Mapping[str, str]) -> WeightSource:
    """A name with one slash may be a directory or a repository of the hub; a directory that exists wins, as it does upstream."""
    path = Path(name).expanduser()
    if path.exists():
        return WeightSource(name, "directory", path) if path.is_dir() else WeightSource(name, "file")
    parts = name.split("/")
    a_repository = (
        len(parts) == 2 and all(parts) and parts[0] not in (".", "..", "~") and not name.endswith(".safetensors")
    )
    if not a_repository or parts[0] in _LOCAL_NAMES or Path(parts[0]).is_dir():
        return WeightSource(name, "missing")
    home = environ.get("HF_HOME") or os.path.join(
        environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    cache = Path(environ.get("HF_HUB_CACHE") or Path(home) / "hub") / f"models--{parts[0]}--{parts[1]}" / "snapshots"
    snapshots = sorted(cache.iterdir(), key=lambda path: path.stat().st_mtime) if cache.is_dir() else []
    return WeightSource(name, "hub cache", snapshots[-1]) if snapshots else WeightSource(name, "hub")


def model_of(config: Mapping[str, Any], upstream: Upstream | None) -> str | None:
    """What the config names, or what upstream takes where it names nothing."""
    if config.get(MODEL):
        return str(config[MODEL])
    family = (upstream.families if upstream else {}).get(str(config.get("model_family", "")).lower(), {})
    flavour = str(config.get("model_flavour") or family.get("default_flavour") or "")
    found = (family.get("models") or {}).get(flavour)
    return None if found is None else str(found)


def vae_of(config: Mapping[str, Any], upstream: Upstream | None) -> str | None:
    """The VAE the config names, or the one upstream takes where it names none."""
    named = str(config.get(VAE) or "")
    family = str(config.get("model_family", "")).lower()
    if named and ("sdxl" not in named or family in _SDXL_VAE):
        return named
    default = upstream.default(VAE) if upstream and not named else None
    return str(default) if default and family in _SDXL_VAE else model_of(config, upstream)


def source_problems(
    config: Mapping[str, Any], upstream: Upstream | None, environ: Mapping[str, str]
) -> Iterator[tuple[Kind, Problem | str]]:
    """("problems", Problem), or ("notes" or "warnings", a sentence)."""
    offline = environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    model, vae = model_of(config, upstream), vae_of(config, upstream)
    for key, name in ((MODEL, model), (VAE, vae)):
        if name is None or (key == VAE and vae == model):
            continue
        source = find(name, environ)
        # A default of upstream's is named by the key that was written.
        label = key if config.get(key) else "model_family"
        default = "" if config.get(key) else f"upstream's default {'model' if key == MODEL else 'VAE'} for it, "
        if source.where == "missing":
            text = f"{default}{name} does not exist; name a directory that does, or a model of the hub"
            yield "problems", Problem(label, text)
        elif source.where == "hub" and offline:
            yield (
                "problems",
                Problem(label, f"{default}{name} is not in the hub's cache, and HF_HUB_OFFLINE forbids the download"),
            )
        elif source.where == "hub" and key == VAE and model and find(model, environ).where in ("directory", "file"):
            own = Path(model).expanduser() / "vae"
            fix = f'; set "{VAE}" to "{model}" to use its own' if own.is_dir() else ""
            yield "warnings", f"the model is local, but the VAE {name} would be downloaded from huggingface.co{fix}"
        elif source.where == "hub":
            yield "notes", f"{label}: {default}{source}"
    if model and (Path(model).expanduser()).is_dir():
        yield from _directory_problems(Path(model).expanduser(), config, upstream)


def _directory_problems(
    directory: Path, config: Mapping[str, Any], upstream: Upstream | None
) -> Iterator[tuple[Kind, Problem | str]]:
    named = str(config.get(MODEL) or directory)
    index = pipeline_of(directory)
    family = str(config.get("model_family", "")).lower()
    known = (upstream.families if upstream else {}).get(family, {})
    part = directory / str(known.get("subfolder") or "")
    if index is None and not (directory / "config.json").is_file() and not part.is_dir():
        wanted = known.get("subfolder") or "config.json"
        yield "problems", Problem(MODEL, f"{named} holds no model: neither model_index.json nor {wanted}")
    elif index and upstream and known and index not in known.get("pipelines", ()):
        others = families_of(index, upstream)
        if others and family not in others:
            yield "problems", Problem("model_family", f'"{family}", but {named} is a {index}: {" or ".join(others)}')
    own_vae = vae_of(config, upstream) == model_of(config, upstream) and bool(known.get("vae_class"))
    if own_vae and index is not None and not (directory / "vae").is_dir():
        yield "problems", Problem(VAE, f"{named} has no vae directory; name a VAE of its family")


def pipeline_of(directory: Path) -> str | None:
    """The class of the pipeline in model_index.json."""
    try:
        return str(json.loads((directory / "model_index.json").read_text(encoding="utf-8"))["_class_name"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def families_of(pipeline: str, upstream: Upstream) -> list[str]:
    """Model families whose pipeline this is."""
    return sorted(name for name, family in upstream.families.items() if pipeline in family.get("pipelines", ()))


@dataclass(frozen=True)
class Weights:
    """Numbers of parameters, from the headers of the weight files; `adapted` counts inputs and outputs LoRA adapts."""

    trained: int = 0
    adapted: int = 0


def weights_of(directory: Path, subfolder: str) -> Weights | None:
    """Parameters of a local model; None where its weights are not there."""
    if not (directory / subfolder).is_dir():
        return None
    trained, adapted = _parameters(directory / subfolder)
    return Weights(trained, adapted) if trained else None


def _parameters(directory: Path) -> tuple[int, int]:
    total = adapted = 0
    files = [file for file in sorted(directory.glob("*.safetensors")) if ".fp16." not in file.name]
    for file in files or sorted(directory.glob("*.safetensors")):
        try:
            with safe_open(file, framework="numpy") as opened:
                shapes = {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118
        except (OSError, SafetensorError):
            continue
        total += sum(prod(shape) for shape in shapes.values())
        adapted += sum(sum(shape) for name, shape in shapes.items() if name.endswith(_ADAPTED) and len(shape) == 2)
    return total, adapted
