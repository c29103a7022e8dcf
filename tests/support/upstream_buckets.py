"""Computes the bucket of each size, its crop and what is cropped, with upstream's own classes; run in the fork, prints JSON."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from simpletuner.helpers.image_manipulation.training_sample import TrainingSample
from simpletuner.helpers.training.state_tracker import StateTracker


def main() -> None:
    request = json.load(sys.stdin)
    StateTracker.set_args(
        Namespace(aspect_bucket_alignment="64", aspect_bucket_rounding=2, output_dir=request["directory"])
    )
    answers = []
    for number, rules in enumerate(request["rules"]):
        name = f"rules{number}"
        StateTracker.set_data_backend_config(name, rules)
        # Upstream remembers one resolution per aspect and resolution; each set of rules starts afresh.
        StateTracker.aspect_resolution_map = {}
        found = []
        for size in request["sizes"]:
            sample = TrainingSample(None, name, image_metadata={"original_size": tuple(size)}, model=Namespace(
                MAXIMUM_CANVAS_SIZE=None, get_transforms=lambda: None))  # fmt: skip
            aspect = str(sample.prepare().aspect_ratio)
            found.append([aspect, [int(edge) for edge in (*sample.target_size, *sample.intermediary_size)]])
        answers.append(found)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
