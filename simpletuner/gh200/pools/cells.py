"""What one kind of memory shares with native code, number by number."""

from __future__ import annotations

# Which context and places its blocks have (0: mapped for nobody), whether free HBM is room for them; then their bytes.
CONTEXT, PREFERS, MAPPED_FOR, ON_GPU, BYTES, PEAK = range(6)
OUT, FREE_HBM, ROWS = 6, 7, 8  # two answers of the driver; rows of the table that were ever used
# What did not go well: how often, and of the last time the bytes asked for and the detail.
NOTES, NOTE = 9, 3
OVER_LIMIT, OVER_ROOM, OVER_TABLE, INFO, PUSH, POP, ALLOCATE, ADVISE, FREE = KINDS_OF_NOTE = tuple(range(9))
# Where blocks begin (0: none), and their bytes. Torch's smallest have 2 MB, those of large tensors 20 MB or more.
TABLE, ROW, CAPACITY = NOTES + NOTE * len(KINDS_OF_NOTE), 2, 1 << 18
CELLS = TABLE + ROW * CAPACITY
