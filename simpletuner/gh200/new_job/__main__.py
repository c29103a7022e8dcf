import signal
import sys

from .command import main

# Whoever ends it finds nothing half made.
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
sys.exit(main())
