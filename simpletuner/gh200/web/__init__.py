"""The fork in upstream's web UI: its blocks kept and shown as fields, and what a run tells about itself."""
