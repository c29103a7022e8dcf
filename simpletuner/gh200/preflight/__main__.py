import signal
import sys

from ..cli.check import main

# A closed pipe (head) ends the output.
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
sys.exit(main())
