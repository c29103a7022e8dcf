"""A browser of its own before upstream's page: what people type, press and read there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gh200_lab.web_assets import PLACE
from tests.support.web_lab import Server

LIMIT = 120_000
AXE = PLACE / "axe-core" / "axe.min.js"
# Upstream's own: its sdist lacks the audio files its page loads; a field of its first tab may not be filled yet when it is read.
_UPSTREAMS = ("/api/sounds/", "Failed to update webhook config")
_READY = "window.Alpine?.store('trainer')?.activeEnvironmentConfig != null"
# A click on a tab may load it twice, and upstream takes what was typed before the second answer for unchanged.
_WATCH = """for (const name of ['htmx:beforeRequest', 'htmx:afterSettle'])
  addEventListener(name, () => { window.lastLoad = performance.now(); });"""
_FILLED = """(tab) => document.querySelector(`[data-tab-form=${tab}]`)
  && !document.querySelector('.htmx-request') && performance.now() - (window.lastLoad ?? 0) > 1000
  && !Alpine.store('trainer')._suppressDirtyTracking"""

# Its icons and toggles have no names that screen readers could read, on any tab.
_SIMPLETUNERS = (".fa-question-circle", ".section-toggle", ".advanced-toggle")
_DISMISS = """for (const tab of ['basic', 'hardware', 'training', 'model', 'datasets'])
  localStorage.setItem(`st_${tab}_hints`, JSON.stringify({hero_dismissed: true, ez_mode: false}));"""
_CLEAN = "(({ formDirty, _suppressDirtyTracking }) => !formDirty && !_suppressDirtyTracking)(Alpine.store('trainer'))"
_REJECTED = "document.body.innerText.includes('Nothing was saved')"


class Browser:
    """One page in a context of its own."""

    def __init__(self, page: Any, home: str) -> None:
        self.page, self.home = page, home
        self.wrong: list[str] = []
        # The status of an answer that a test provokes: chromium writes each failed request into the console.
        self.expected = "\0"
        page.set_default_timeout(LIMIT)
        page.on("pageerror", lambda error: self.wrong.append(f"page error: {error}"))
        self.accepts = False
        page.on("dialog", self._asked_by_dialog)
        page.on("request", self._asked)
        page.on("console", self._logged)

    def _asked_by_dialog(self, dialog: Any) -> None:
        if self.accepts:
            dialog.accept()
            return
        self.wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.home, "data:", "blob:")):
            self.wrong.append(f"another host: {request.url}")

    def _logged(self, message: Any) -> None:
        text = f"{message.text} ({message.location.get('url', '')})"
        if message.type == "error" and not any(known in text for known in (*_UPSTREAMS, self.expected)):
            self.wrong.append(text)

    def open(self) -> None:
        """Opens the trainer page."""
        self.page.goto(f"{self.home}/web/trainer")
        self.page.wait_for_function(_READY)

    def open_tab(self, tab: str = "hardware") -> None:
        """Opens a tab and returns when its fields are filled."""
        self.page.evaluate(f"document.querySelector('[data-tab={tab}]').click()")
        self.wait_for_tab(tab)

    def wait_for_tab(self, tab: str) -> None:
        """Returns when the tab's fields are filled."""
        self.page.wait_for_function(_FILLED, arg=tab)

    def field(self, name: str) -> Any:
        """The control of one of our keys."""
        return self.page.locator(f"#gh200_{name}")

    def unfold(self, section: str) -> None:
        """Shows the advanced keys of a section."""
        self.page.click(f"[data-bs-target='#advanced-content-{section}_advanced']")
        self.page.wait_for_selector(f"#advanced-content-{section}_advanced.show")

    def enter(self, name: str, value: Any) -> None:
        """Sets one of our keys and leaves its field, as people do; returns when the server has judged the value."""
        control = self.field(name)
        with self.page.expect_response(lambda answer: f"/api/validate/gh200_{name}" in answer.url):
            if isinstance(value, bool):
                control.set_checked(value)
            elif control.evaluate("each => each.tagName") == "SELECT":
                control.select_option(value)
            else:
                control.fill(str(value))
                control.press("Tab")

    def edit_json(self, change: Any) -> None:
        """View JSON: `change` gets the config of the page and returns what is applied."""
        self.page.get_by_text("View JSON").click()
        draft = self.page.locator("[x-model=configJsonDraft]")
        draft.wait_for()
        draft.fill(json.dumps(change(json.loads(draft.input_value()))))
        self.page.locator("[\\@click='applyConfigJsonDraft()']").click()
        self.page.evaluate("Alpine.store('trainer').closeConfigJsonModal()")

    def save(self) -> int:
        """Presses Save, confirms, and says how the server answered; an answer is read when the page has shown it."""
        self.page.click("button[aria-label='Save configuration']")
        with self.page.expect_response(lambda answer: answer.url.endswith("/api/training/config")) as answer:
            self.page.click("#confirmSaveConfigButton")
        status: int = answer.value.status
        # After a save the page reads the file again; a rejection stays as a message.
        self.page.wait_for_function(_CLEAN if status == 200 else _REJECTED)
        return status

    def press(self, button: str, answer: str) -> str:
        """Validate or Run: what the page shows then in the place of the answer."""
        self.page.evaluate(f"document.querySelector('{answer}').replaceChildren()")
        self.page.click(f"#{button}")
        shown = self.page.locator(f"{answer} .alert").first
        shown.wait_for()
        message: str = shown.inner_text()
        return message

    def juts_out(self, within: str = "main") -> list[str]:
        """Elements of a page that do not fit the width of the window."""
        found: list[str] = self.page.evaluate(
            """(within) => [...document.querySelectorAll(`${within} *`)].filter((each) => {
                 const box = each.getBoundingClientRect();
                 return box.width && (box.right > innerWidth + 1 || box.left < -1);
               }).map((each) => each.outerHTML.slice(0, 80))""",
            within,
        )
        return found

    def axe(self, within: str) -> list[str]:
        """What axe-core finds wrong there: contrast, names, roles, keyboard. Not in what SimpleTuner adds to every field."""
        self.page.add_script_tag(path=str(AXE))
        found: list[str] = self.page.evaluate(
            """async ([within, exclude]) =>
                 (await axe.run({ include: [within], exclude }, { runOnly: ['wcag2a', 'wcag2aa'] })).violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html.slice(0, 120)}`))""",
            [within, [[selector] for selector in _SIMPLETUNERS]],
        )
        return found


@contextmanager
def opened(chromium: Any, server: Server, width: int = 1280, tab: str = "hardware") -> Iterator[Browser]:
    """A browser, most often with the tab open that shows our settings; at its end no error was shown and no other host was asked."""
    context = chromium.new_context(viewport={"width": width, "height": 1000})
    # Introductions lie over the fields of a tab until they are dismissed; the easy mode of a tab hides them.
    context.add_init_script(_DISMISS)
    context.add_init_script(_WATCH)
    browser = Browser(context.new_page(), f"http://127.0.0.1:{server.port}")
    try:
        browser.open()
        if tab:
            browser.open_tab(tab)
        yield browser
        assert not browser.wrong, browser.wrong
    finally:
        context.close()
