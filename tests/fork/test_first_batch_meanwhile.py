"""What happens while a start goes on: what it has not seen, it does not vouch for."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from test_first_batch_warm import certified, rewrite, scene, soon_settled, state

from gh200_lab.first_batch import fast_start, make_pictures
from gh200_lab.warm_start import WarmScene, quietly

__all__ = ["scene", "soon_settled"]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_first_batch_a_caption_edited_during_a_start_is_not_certified(
    scene: WarmScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read, then edited, then looked at for the certificate: its times are of words that upstream has not seen."""
    from simpletuner.helpers.caching.text_embeds import TextEmbeddingCache

    text = sorted(scene.folder.rglob("*.txt"))[9]
    plain = TextEmbeddingCache.compute_embeddings_for_prompts

    def edited_meanwhile(self: Any, *given: Any, **named: Any) -> Any:
        rewrite(text, "edited meanwhile")
        time.sleep(0.05)
        return plain(self, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(TextEmbeddingCache, "compute_embeddings_for_prompts", edited_meanwhile)
        certified(scene)
    assert "edited meanwhile" in state(scene, False)["encoded"]
    assert "edited meanwhile" in certified(scene)["encoded"]


def test_first_batch_a_caption_that_could_not_be_read_is_not_certified(
    scene: WarmScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that answers again a moment later: upstream goes on without that caption, for one start."""
    from simpletuner.helpers.data_backend.local import LocalDataBackend

    text = sorted(scene.folder.rglob("*.txt"))[9]
    rewrite(text, "not read at first")
    time.sleep(0.03)
    plain = LocalDataBackend.read

    def read(self: Any, filepath: Any, as_byteIO: bool = False) -> Any:
        if Path(filepath) == text:
            raise OSError(5, "Input/output error")
        return plain(self, filepath, as_byteIO)

    with monkeypatch.context() as patch:
        patch.setattr(LocalDataBackend, "read", read)
        certified(scene)
    assert "not read at first" in state(scene, False)["encoded"]
    assert "not read at first" in certified(scene)["encoded"]


def test_first_batch_pictures_listed_anew_in_a_run_are_not_taken_for_named(scene: WarmScene) -> None:
    """Upstream compares with the names it has; a record of that must not speak for a start that names all of them."""
    from simpletuner.helpers.caching.vae import VAECache
    from simpletuner.helpers.training import image_file_extensions
    from simpletuner.helpers.training.state_tracker import StateTracker

    for _ in range(2):
        state(scene, True)
    with fast_start(True), quietly():
        cache = scene.started().vae
        [picture] = make_pictures(scene.folder / "more", [(90, 70)], ("jpg",))
        Path(picture).with_suffix(".txt").write_text("new", encoding="utf-8")
        latent = Path(VAECache.generate_vae_cache_filename(cache, str(picture))[0])
        latent.parent.mkdir(parents=True, exist_ok=True)
        latent.write_bytes(b"an entry")
        time.sleep(0.03)
        pictures = cache.image_data_backend.list_files(image_file_extensions, str(scene.folder))
        StateTracker.set_image_files(pictures, data_backend_id="pictures")
        latents = cache.cache_data_backend.list_files(["pt"], str(scene.latents))
        StateTracker.set_vae_cache_files(latents, data_backend_id="pictures")
        assert cache.discover_unprocessed_files() == [str(picture)]
    assert state(scene, False)["unprocessed"] == []
    assert state(scene, True)["unprocessed"] == []


def test_first_batch_a_folder_that_goes_while_it_is_listed_again_is_left_out(
    scene: WarmScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `os.walk` does it: asked for other files than before, a known folder is looked into again, and may be gone."""
    from simpletuner.gh200.start import listing

    # With a link the listing is never whole, so that upstream goes through the folders.
    (scene.folder / "linked").symlink_to("nowhere")
    time.sleep(0.03)
    plain = listing._look_into

    def gone(folder: str) -> Any:
        if folder.endswith("0000"):
            shutil.rmtree(folder)
        return plain(folder)

    with fast_start(True), quietly():
        backend = scene.started().metadata.data_backend
        monkeypatch.setattr(listing, "_look_into", gone)
        assert backend.list_files(["png"], str(scene.folder)) == []
