"""Whether a training config will work, checked in seconds and without torch: `python -m simpletuner.gh200.preflight CONFIG`."""
