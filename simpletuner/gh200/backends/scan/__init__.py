"""From the start of a run to its first batch: the scan of a dataset's images."""
