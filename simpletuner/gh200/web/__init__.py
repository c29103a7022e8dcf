"""The fork in upstream's web UI: its blocks kept, a tab for them, and what a run tells about itself."""
