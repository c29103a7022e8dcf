"""Our methods on objects of SimpleTuner's server: its forms, pages, config files and dataset plans."""

from __future__ import annotations

import json
import logging
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from fastapi import Depends, Request
from jinja2 import ChoiceLoader, FileSystemLoader, PrefixLoader

from ..errors import GH200Error
from ..files import write_whole
from ..overrides import Overrides, override
from .assets import LocalAssets
from .checks import FieldChecks, judged
from .fields import SECTIONS
from .forms import field_values, is_training_config
from .live import LARGEST_VALUE, SERVER, TEMPLATES, routes
from .saving import REVISIONS, check_inside, check_save, completed_bundle, readable

_logger = logging.getLogger("gh200.web")

_SAVE = "/api/training/config"
_TRIALS = ("/api/training/validate", "/api/training/start")
# A directory of its own: SimpleTuner lists every JSON file beside the configs as one of them.
_UNFINISHED = ".saving"


def extend_config_store(store: Any) -> None:
    """Overrides how one directory of configs is listed and written."""
    ConfigFiles(store).install(store)


def extend_server(tabs: Any, router: Any) -> Any:
    """Called once, when the routes of the page are made and before the server has any; returns the tabs."""
    training: Any = import_module(f"{SERVER}.routes.training")
    Forms().install(training.training_service)
    Configs().install(import_module(f"{SERVER}.services.configs_service").CONFIGS_SERVICE)
    Tabs().install(import_module(f"{SERVER}.dependencies.common")._field_service)
    FieldChecks().install(import_module(f"{SERVER}.routes.validation")._validation_service)
    _add_sections(import_module(f"{SERVER}.services.field_service"))
    _guard_saves(training)
    environment = tabs.templates.env
    environment.add_extension(LocalAssets)
    # A template of ours with the name of one of its own extends that, which is then found below "simpletuner/".
    own = environment.loader
    environment.loader = ChoiceLoader([FileSystemLoader(TEMPLATES), PrefixLoader({"simpletuner": own}), own])
    # As they are: what is added by its own router lies below its /web.
    router.routes += routes(training, environment).routes
    return tabs


def _add_sections(fields: Any) -> None:
    """Two sections among those of the Hardware and the Training tab, each with its advanced keys folded."""
    layouts = fields.FieldService._TAB_SECTION_LAYOUTS
    for tab, section, title, icon, order in SECTIONS:
        first = {"match_section": section, "match_subsections": (None,), "subsection_override": ""}
        folded = {"match_section": section, "match_subsections": ("advanced",), "subsection_override": "advanced"}
        layouts[tab] = (
            *layouts[tab],
            fields.SectionLayout(section, title, icon, template="gh200_section.html", order=order, **first),
            fields.SectionLayout(f"{section}_advanced", "", advanced=True, parent=section, order=order + 1, **folded),
        )


def _guard_saves(training: Any) -> None:
    """A failed save is answered with success, so a save is rejected before it begins: by a dependency of its route.

    The user is one of the guard's own: nothing waits between the guard and the save, so that of two saves one is first.
    """

    user = Depends(training.get_current_user)

    async def accept(request: Request, _user: Any = user) -> None:
        # A request reads its form once: the route behind this gets the same one.
        await request.form(max_part_size=LARGEST_VALUE)

    async def guard(request: Request, _user: Any = user) -> None:
        form = await request.form(max_part_size=LARGEST_VALUE)
        check_save(form, training.training_service.get_config_store(), REVISIONS.of(form))

    posts = [route for route in training.router.routes if "POST" in getattr(route, "methods", ())]
    for route in posts:
        if route.path in _TRIALS:
            route.dependencies.append(Depends(accept))
    found = [route for route in posts if route.path == _SAVE]
    if len(found) != 1:
        raise GH200Error(
            f"This upstream has {len(found)} routes that save a training config.",
            where=_SAVE,
            why="a save that would lose blocks could not be rejected",
            fix="use an upstream release the fork was verified on",
        )
    found[0].dependencies.append(Depends(guard))


class Forms(Overrides):
    """A form of the page as a config, and what is wrong with it; the one module that does both."""

    upstream_class = "training_service"
    feature = "the web UI"

    @override
    def build_config_bundle(self, form_data: Any) -> Any:
        bundle = self.upstream.build_config_bundle(form_data)
        return completed_bundle(bundle, form_data, REVISIONS.of(form_data))

    @override
    def validate_training_config(self, store: Any, complete_config: Any, *args: Any, **options: Any) -> Any:
        result = self.upstream.validate_training_config(store, complete_config, *args, **options)
        return judged(result, store, complete_config)


class Configs(Overrides):
    """A config that a page asks for has a revision, which the page sends back with its save."""

    upstream_class = "ConfigsService"
    feature = "the web UI"

    @override
    def get_config(self, name: str, config_type: str = "model") -> dict[str, Any]:
        answer: dict[str, Any] = self.upstream.get_config(name, config_type)
        return REVISIONS.give(answer) if config_type == "model" else answer


class Tabs(Overrides):
    """The fields of a tab show what the blocks of the config say."""

    upstream_class = "FieldService"
    feature = "the web UI"

    @override
    def prepare_tab_field_values(self, tab_name: str, config_data: Any, webui_defaults: Any) -> dict[str, Any]:
        values: dict[str, Any] = self.upstream.prepare_tab_field_values(
            tab_name, {**config_data, **field_values(config_data)}, webui_defaults
        )
        return values


class ConfigFiles(Overrides):
    """The configs of one directory: names stay in it, blocks are never text, inline datasets make no dataset file."""

    upstream_class = "ConfigStore"
    feature = "the web UI"

    def __init__(self, store: Any) -> None:
        super().__init__()
        self.store = store

    @override
    def save_config(self, name: str, config: Any, *args: Any, **options: Any) -> Any:
        self._check_name(name)
        return self.upstream.save_config(name, readable(config), *args, **options)

    @override
    def save_trainer_config(self, name: str, config: Any, overwrite: bool = False) -> None:
        self._check_name(name)
        path = Path(os.path.realpath(self.store._get_config_path(name)))
        REVISIONS.written(config)
        if not overwrite or not path.is_file():
            self.upstream.save_trainer_config(name, config, overwrite)
            return
        # Upstream empties a file before it writes: a server that dies then, or a full disk, would leave no config.
        unfinished = f"{_UNFINISHED}/{name}.{os.getpid()}"
        part = Path(self.store._get_config_path(unfinished))
        try:
            self.upstream.save_trainer_config(unfinished, config, overwrite=True)
            # Beside the real file: a config may be a link to another file system.
            write_whole(path, part.read_bytes())
        finally:
            part.unlink(missing_ok=True)

    @override
    def list_configs(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self.upstream.list_configs()
        if self.store.config_type == "dataloader":
            return [entry for entry in listed if not is_training_config(_content(Path(entry.get("path", ""))))]
        known = {entry.get("name") for entry in listed}
        missing = [
            path.stem
            for path in sorted(Path(self.store.config_dir).glob("*.json"))
            if path.stem not in known
            and is_training_config(data := _content(path))
            and isinstance(data.get("datasets"), list)
        ]
        return listed + [entry for name in missing if (entry := self._entry(name)) is not None]

    def _entry(self, name: str) -> dict[str, Any] | None:
        """One more row of the list; a file that the store cannot load has none, as those it lists itself."""
        try:
            return {**self.store.load_config(name)[1].model_dump(), "name": name, "has_dataloader": False}
        except (OSError, ValueError, AttributeError) as error:
            _logger.warning("GH200: the config %s is not listed: %s", name, error)
            return None

    def _check_name(self, name: str) -> None:
        if self.store.config_type == "model":
            check_inside(self.store, Path(self.store._get_config_path(name)))


def _content(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
