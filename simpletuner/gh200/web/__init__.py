"""The fork in upstream's web UI: its keys as fields, saves that keep them, and the page of a run."""
