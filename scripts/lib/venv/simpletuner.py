# .venv/bin/simpletuner: upstream's own command line, of the fork that gh200-fork.pth leads to. Written by scripts/setup.sh.
import os
import sys
import warnings
from importlib.util import find_spec

# `simpletuner train` starts `accelerate` by name, and that must be the one beside it, also where .venv is not activated.
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", os.defpath)
# torch's talk to its own libraries, in front of every answer.
warnings.filterwarnings("ignore", r".*\bLeafSpec\b", FutureWarning)
if find_spec("st_cli"):
    from st_cli import main
elif find_spec("simpletuner"):
    # Releases before st_cli.
    from simpletuner.cli import main
else:
    print(
        "error: there is no fork yet, so there is no simpletuner to run\n"
        "  fix: build it with ./execute_gh200_rebase.sh --skip-tests in the checkout",
        file=sys.stderr,
    )
    sys.exit(2)
sys.exit(main())
