import sys

from ..cli.doctor import main

sys.exit(main())
