"""The owner's launch line, from the root of the checkout: `accelerate launch ... simpletuner/train.py --config FILE`."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).resolve().parents[1] / "train.py"), run_name="__main__")
