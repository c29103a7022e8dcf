"""`python -m simpletuner.gh200.caches`."""

from .command import main

raise SystemExit(main())
