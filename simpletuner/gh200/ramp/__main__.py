import sys

from ..cli.ramp import main

sys.exit(main())
