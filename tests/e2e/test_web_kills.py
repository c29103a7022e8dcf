"""A web server that is killed in the middle of a save: a real one, many times."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.support.web_lab import CONFIG, OURS, Server

pytestmark = [pytest.mark.slow(reason="kills web servers, each at another time"), pytest.mark.timeout(1800)]
# Everything is imported once; each server is a child, and a killed one has a successor at once.
_PROGRAM = """
import os
import simpletuner.simpletuner_sdk.server.routes.training, simpletuner.simpletuner_sdk.server.routes.web
from simpletuner.cli import main
while os.fork():
    os.wait()
main()
"""
KILLS = 12
# Some megabytes: long enough in writing to die in it.
LARGE = CONFIG | {"datasets": [{**CONFIG["datasets"][0], "id": f"images-{number}"} for number in range(20_000)]}


class Mortal(Server):
    """A server whose child can be killed."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "web", program=_PROGRAM)

    def kill(self) -> None:
        for path in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            for pid in path.read_text().split():
                os.kill(int(pid), signal.SIGKILL)

    def parts(self, name: str) -> set[tuple[Path, int]]:
        """What a save that did not come to its end has left, and when."""
        found = set()
        for path in (self.configs / ".saving").glob(f"{name}.*json"):
            with suppress(FileNotFoundError):
                found.add((path, path.stat().st_mtime_ns))
        return found


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mortal]:
    with Mortal(tmp_path_factory.mktemp("mortal")) as server:
        yield server


def save_and_kill(server: Mortal, form: dict[str, str], delay: float | None) -> bool:
    """One save during which the server dies, after a while or as soon as it writes; whether it had answered by then."""
    answers: list[int] = []

    def save() -> None:
        try:
            answers.append(
                httpx.post(f"http://127.0.0.1:{server.port}/api/training/config", data=form, timeout=60).status_code
            )
        except httpx.HTTPError:
            pass

    before, thread = server.parts("dies"), threading.Thread(target=save)
    thread.start()
    until = time.monotonic() + (30.0 if delay is None else delay)
    while time.monotonic() < until and thread.is_alive() and (delay is not None or server.parts("dies") <= before):
        time.sleep(0.0005)
    server.kill()
    thread.join()
    return answers == [200]


def test_server_killed_in_the_middle_of_a_save_leaves_the_old_file_or_the_new(mortal: Mortal) -> None:
    mortal.show("dies", LARGE)
    torn = 0
    for attempt in range(KILLS):
        seen = mortal.show("dies")
        before = mortal.read("dies")
        rate = f"0.00{attempt + 1:02d}"
        form = {key: text for key, text in mortal.form(seen, learning_rate=rate).items() if key != "--datasets"}
        del form["--gh200_revision"]
        # Every second one as soon as its first byte is written, the others at other times.
        known = mortal.parts("dies")
        answered = save_and_kill(mortal, form, None if attempt % 2 else 0.02 * attempt)
        torn += len(mortal.parts("dies") - known)
        after = mortal.read("dies")
        assert {key: after.get(key) for key in OURS} == {key: LARGE[key] for key in OURS}
        assert after["learning_rate"] in (before["learning_rate"], pytest.approx(float(rate)))
        assert not answered or after["learning_rate"] == pytest.approx(float(rate)), "answered as saved, and it is not"
        mortal.wait()
    print(f"{KILLS} servers killed, {torn} of them while they wrote")
    assert torn, "no server died while it wrote: the test shows nothing"
    names = {item["name"] for item in mortal.http.get("/api/configs/").json()["configs"]}
    assert "dies" in names and not {name for name in names if name.startswith(".")}
