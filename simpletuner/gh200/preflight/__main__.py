import signal
import sys

from .command import main

# Whoever reads no further (head) is told no more.
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
sys.exit(main())
