"""Keeps pytest out of the invented releases: their tests belong to them."""

collect_ignore_glob = ["v1/*", "v2/*"]
