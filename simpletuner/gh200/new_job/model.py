"""The model of a job: its family, its VAE, and the resolution it was made for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.problems import nearest
from ..errors import GH200Error
from ..preflight.model import families_of, find, pipeline_of
from ..preflight.upstream_keys import Upstream

DEFAULT_FAMILY = "sdxl"
_EDGE = {"sd1x": 512, "deepfloyd": 64}
_USUAL_EDGE = 1024
_HUB_VAE = {"sdxl": "madebyollin/sdxl-vae-fp16-fix"}


@dataclass(frozen=True)
class Model:
    """`edge` is the side of the square it was trained on; `why` says where family and VAE come from."""

    name: str
    family: str
    flavour: str | None
    vae: str
    edge: int
    why: str


def choose_model(
    name: str | None, family: str | None, vae: str | None, upstream: Upstream, environ: Mapping[str, str]
) -> Model:
    """The model of a job from --model, --family and --vae; one clear error where they do not fit."""
    if family is not None and family not in upstream.families:
        raise GH200Error(
            f'"{family}" is no model family.{nearest(family, upstream.families)}',
            where="--family",
            why=f"upstream knows {', '.join(sorted(upstream.families))}",
            fix="name one of these",
        )
    if name is None:
        return _default_of(family or DEFAULT_FAMILY, vae, upstream)
    source = find(name, environ)
    if source.where == "missing":
        raise GH200Error(
            "The model does not exist.", where=f"--model {name}",
            fix="name a directory that holds model_index.json, or a model of the hub as OWNER/NAME",
        )  # fmt: skip
    if source.where == "file":
        raise GH200Error(
            "The model is a single file; a directory in the diffusers layout is wanted.",
            where=f"--model {name}",
            fix="convert it with diffusers (from_single_file, save_pretrained) and name the directory",
        )
    if source.where == "directory":
        return _from_directory(Path(name), family, vae, upstream)
    listed = [
        (key, flavour)
        for key, known in upstream.families.items()
        for flavour, model in (known.get("models") or {}).items()
        if model.lower() == name.lower() and family in (None, key)
    ]
    if family:
        return _from_hub(name, family, listed[0][1] if listed else None, vae, "--family")
    if listed:
        return _from_hub(name, *listed[0], vae, "upstream's list of models")
    models = [model for known in upstream.families.values() for model in (known.get("models") or {}).values()]
    raise GH200Error(
        "The family of this model is not known.",
        where=f"--model {name}",
        why=f"it is none of the {len(set(models))} models of the hub that upstream lists.{nearest(name, models, 0.8)}",
        fix=f"name its family with --family: {', '.join(sorted(upstream.families))}",
    )


def _default_of(family: str, vae: str | None, upstream: Upstream) -> Model:
    known = upstream.families.get(family, {})
    flavour = str(known.get("default_flavour") or "")
    name = (known.get("models") or {}).get(flavour)
    if not name:
        raise GH200Error(f"Upstream names no model for {family}.", where="--family", fix="name one with --model")
    return _from_hub(name, family, flavour, vae, "upstream's default for the family")


def _from_hub(name: str, family: str, flavour: str | None, vae: str | None, why: str) -> Model:
    return Model(name, family, flavour, vae or _HUB_VAE.get(family, name), _EDGE.get(family, _USUAL_EDGE), why)


def _from_directory(directory: Path, family: str | None, vae: str | None, upstream: Upstream) -> Model:
    pipeline = pipeline_of(directory)
    families = families_of(pipeline, upstream) if pipeline else []
    if family is None and len(families) != 1:
        what = (
            f"is a {pipeline}, which belongs to {' or '.join(families)}"
            if families
            else "does not say which family it is"
        )
        raise GH200Error(
            f"The model {what}.",
            where=f"--model {directory}",
            why="" if pipeline else f"there is no {directory / 'model_index.json'}",
            fix="name it with --family"
            if pipeline
            else "name the directory that holds that file, or the family with --family",
        )
    chosen = family or families[0]
    part = directory / str(upstream.families[chosen].get("subfolder") or "unet")
    if not part.is_dir():
        raise GH200Error(
            f"The directory holds no {part.name} of the family {chosen}.", where=f"--model {directory}",
            fix="name a directory in the diffusers layout, or another --family",
        )  # fmt: skip
    own = (directory / "vae").is_dir()
    if not own and vae is None and upstream.families[chosen].get("vae_class"):
        raise GH200Error(
            "The model has no vae directory.", where=f"--model {directory}", fix="name a VAE of its family with --vae"
        )
    why = "--family" if family else f"model_index.json says {pipeline}"
    return Model(str(directory), chosen, None, vae or str(directory), _edge(directory, part, chosen), why)


def _edge(directory: Path, part: Path, family: str) -> int:
    sample = _json(part / "config.json").get("sample_size")
    blocks = _json(directory / "vae" / "config.json").get("block_out_channels")
    edge = sample[0] if isinstance(sample, list) and sample else sample
    if isinstance(edge, int) and edge > 0 and isinstance(blocks, list) and blocks:
        return int(edge * 2 ** (len(blocks) - 1))
    return _EDGE.get(family, _USUAL_EDGE)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
