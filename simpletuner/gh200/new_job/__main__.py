import signal
import sys

from ..cli.new_job import main

# SIGTERM leaves no partial job; a closed pipe (head) ends the output.
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
sys.exit(main())
