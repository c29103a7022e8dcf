"""Our tab and our script in upstream's page: the one object that has its tabs, and the loader of its templates."""

from __future__ import annotations

import asyncio
import html
import json
from collections.abc import Callable
from typing import Any

from fastapi.responses import HTMLResponse, JSONResponse
from jinja2 import BaseLoader, Environment, TemplateNotFound

from ..stand_in import StandIn, instead
from .assets import add_route
from .blocks import KEPT_KEYS, kept_of
from .controls import controls
from .fields import SECTIONS, TAB
from .live import live
from .rewriting import TEMPLATES, rewritten

TEMPLATE = "gh200_tab.html"
# Asked for like a tab, and so behind the same login: the figures of a run as JSON.
LIVE = "gh200_live"


class Page(StandIn):
    """Stands in for upstream's tab service, the only one of the server."""

    upstream_class = "TabService"
    feature = "the GH200 tab"

    def __init__(self, router: Any) -> None:
        super().__init__()
        self.router = router

    def take(self, tabs: Any) -> Any:
        self.take_over(tabs)
        add_route(self.router)
        self.make = type(next(iter(tabs._tab_configs.values())))
        environment = tabs.templates.env
        environment.loader = Loader(environment.loader)
        return tabs

    @instead
    def get_tab_config(self, tab_name: str) -> Any:
        if tab_name != TAB:
            return self.upstream.get_tab_config(tab_name)
        return self.make(
            id="gh200-config",
            title="GH200",
            icon="fas fa-memory",
            template=TEMPLATE,
            description="Unified memory, datasets in RAM, the accumulation ramp",
            extra_context_handler=self.context,
        )

    @instead
    def get_all_tabs(self) -> list[dict[str, Any]]:
        tabs: list[dict[str, Any]] = self.upstream.get_all_tabs()
        ours = self.get_tab_config(TAB)
        place = next((at + 1 for at, tab in enumerate(tabs) if tab.get("name") == "training"), len(tabs))
        entry = {"id": ours.id, "name": TAB, "title": ours.title, "icon": ours.icon, "description": ours.description}
        return [*tabs[:place], entry, *tabs[place:]]

    @instead
    async def render_tab(self, *args: Any, **options: Any) -> Any:
        name = options.get("tab_name", args[1] if len(args) > 1 else "")
        if name == LIVE:
            return JSONResponse(await asyncio.to_thread(live, options.get("raw_config")))
        if name != TAB:
            return await self.upstream.render_tab(*args, **options)
        try:
            return await self.upstream.render_tab(*args, **options)
        except TemplateNotFound as error:
            return HTMLResponse(
                '<div class="alert alert-danger m-3">The GH200 tab cannot be shown: its template '
                f"<code>{html.escape(str(error.name))}</code> is missing in the fork's <code>simpletuner/gh200/web/templates</code>. "
                "Your settings are kept as they are. Build the fork again to get it back.</div>"
            )

    def context(self, context: dict[str, Any], fields: Any, values: Any) -> dict[str, Any]:
        """What our template shows: the blocks as text, and the controls."""
        ours = kept_of(context.get("raw_config"))
        context["gh200_blocks"] = [
            {"name": name, "text": _text(ours.get(name)), "older": name not in SECTIONS}
            for name in sorted(KEPT_KEYS, key=lambda name: (name not in SECTIONS, name))
            if name in SECTIONS or name in ours
        ]
        context["gh200_controls"] = {
            title: [control.as_json() for control in group] for title, group in controls().items()
        }
        return context


class Loader(BaseLoader):
    """Upstream's templates, changed a little on the way, and ours."""

    def __init__(self, upstream: BaseLoader) -> None:
        self.upstream = upstream

    def get_source(self, environment: Environment, template: str) -> tuple[str, str | None, Callable[[], bool] | None]:
        if not template.startswith("gh200_"):
            source, path, fresh = self.upstream.get_source(environment, template)
            return rewritten(template, source), path, fresh
        ours = TEMPLATES / template
        try:
            return ours.read_text(encoding="utf-8"), str(ours), None
        except OSError as error:
            raise TemplateNotFound(template) from error

    def list_templates(self) -> list[str]:
        return sorted({*self.upstream.list_templates(), *(path.name for path in TEMPLATES.glob("gh200_*.html"))})


def _text(value: object) -> str:
    return "" if value is None else json.dumps(value, indent=2, ensure_ascii=False)
