"""One local backend: datasets in RAM, cached tensors, the scan of a dataset."""
