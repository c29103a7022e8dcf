"""Changes of the real upstream after which an edit still lands, and would be ineffective or harmful there. Data only.

A change is a list of steps: ("drop", scope, anchor) or (verb, scope, anchor, code), in the patch format's own terms.
"""

from __future__ import annotations

from dataclasses import dataclass

Step = tuple[str, ...]


@dataclass(frozen=True)
class Mutant:
    edit: str
    name: str
    steps: tuple[Step, ...]


TRAIN, PARSE = "Trainer.train", "Trainer.parse_arguments"
ACCUMULATE = "with self.accelerator.accumulate(...):\n    ..."
PREPARE = "prepared_batch = self.prepare_batch(...)"
GATE = "step % self.config.gradient_accumulation_steps == 0"
ACCELERATOR = "self.accelerator = Accelerator(**accelerator_kwargs)"
SAFETY = "safety_check(...)"
NO_CONFIG = "if self.config is None:\n    ...\n    raise ValueError(...)"
START = 'step = self.state["global_step"]'
LOGS = "logs = {...}"

ORDER = (
    Mutant("01/start-features", "third_accelerator_after", (("after", PARSE, SAFETY, ACCELERATOR),)),
    Mutant(
        "01/start-features",
        "accelerator_at_the_end",
        (("after", PARSE, "self.config.learning_rate = ...", ACCELERATOR),),
    ),
    Mutant(
        "01/start-features",
        "safety_check_above_the_accelerator",
        (("drop", PARSE, SAFETY), ("after", PARSE, NO_CONFIG, "safety_check(args=self.config, accelerator=None)")),
    ),
    Mutant("01/start-features", "rate_scaled_before", (("before", PARSE, SAFETY, "self.config.learning_rate = 1.0"),)),
    Mutant("01/configure", "loaded_again", (("before", PARSE, SAFETY, "self.config = load_config(None)"),)),
    Mutant("01/configure", "accelerator_before", (("before", PARSE, NO_CONFIG, ACCELERATOR),)),
    Mutant(
        "01/micro-batch",
        "signals_checked_after",
        (("drop", TRAIN, "self._exit_on_signal()"), ("after", TRAIN, ACCUMULATE, "self._exit_on_signal()")),
    ),
    Mutant("01/training-begins", "counted_before", (("before", TRAIN, START, "step = 0\nstep += 1"),)),
)
DATAFLOW = (
    Mutant("01/training-begins", "start_stored_again", (("after", TRAIN, START, "step = int(step)"),)),
    Mutant("01/training-begins", "start_unpacked_again", (("after", TRAIN, START, "step, rest = 0, 0"),)),
    Mutant(
        "01/micro-batch",
        "counted_behind_accumulate",
        (("drop", TRAIN, "step += 1"), ("after", TRAIN, ACCUMULATE, "step += 1")),
    ),
    Mutant(
        "01/micro-batch",
        "counted_inside_accumulate",
        (("drop", TRAIN, "step += 1"), ("before", TRAIN, LOGS, "step += 1")),
    ),
    Mutant(
        "01/micro-batch",
        "counted_under_another_name",
        (("before", TRAIN, "step += 1", "micro = step + 1"), ("drop", TRAIN, "step += 1")),
    ),
    Mutant("01/micro-batch", "batch_stored_after", (("after", TRAIN, ACCUMULATE, "prepared_batch = None"),)),
    Mutant("01/micro-batch", "batch_deleted_after", (("after", TRAIN, ACCUMULATE, "del prepared_batch"),)),
    Mutant("01/micro-batch", "batch_as_walrus", (("after", TRAIN, ACCUMULATE, "print(prepared_batch := 1)"),)),
    Mutant(
        "01/micro-batch",
        "batch_under_another_name",
        (("before", TRAIN, PREPARE, "batch = self.prepare_batch(raw_batch)"), ("drop", TRAIN, PREPARE)),
    ),
    Mutant("01/micro-batch", "step_reset_after", (("after", TRAIN, ACCUMULATE, "step = 0"),)),
    Mutant(
        "01/window-gate",
        "gate_counts_another",
        (("before", TRAIN, "step += 1", "micro = step + 1"), ("drop", TRAIN, "step += 1")),
    ),
    Mutant("01/window-gate", "step_stored_behind_the_gate", (("after", TRAIN, LOGS, "step = 0"),)),
    Mutant(
        "04/decode",
        "arguments_read_again",
        (("after", "parse_cmdline_args", "parser = get_argument_parser()", "input_args = None"),),
    ),
)
UNREACHED = (
    Mutant("01/micro-batch", "always_continue", (("before", TRAIN, ACCUMULATE, "continue"),)),
    Mutant("01/micro-batch", "always_break", (("before", TRAIN, ACCUMULATE, "break"),)),
    Mutant(
        "01/micro-batch", "both_branches", (("before", TRAIN, ACCUMULATE, "if step:\n    continue\nelse:\n    break"),)
    ),
    Mutant("01/micro-batch", "endless_loop", (("before", TRAIN, ACCUMULATE, "while True:\n    step = step"),)),
    Mutant("01/micro-batch", "exit", (("before", TRAIN, ACCUMULATE, "import sys\nsys.exit()"),)),
    Mutant("01/micro-batch", "in_a_with", (("before", TRAIN, ACCUMULATE, "with self.x:\n    return"),)),
    Mutant(
        "01/micro-batch",
        "in_a_try",
        (("before", TRAIN, ACCUMULATE, "try:\n    return\nexcept ValueError:\n    raise"),),
    ),
    Mutant("01/micro-batch", "finally", (("before", TRAIN, ACCUMULATE, "try:\n    step\nfinally:\n    return"),)),
    Mutant("01/micro-batch", "match", (("before", TRAIN, ACCUMULATE, "match step:\n    case _:\n        return"),)),
    Mutant("01/micro-batch", "assert_false", (("before", TRAIN, ACCUMULATE, "assert False"),)),
    Mutant("01/training-begins", "return_at_once", (("before", TRAIN, START, "return self.train_later()"),)),
    Mutant("01/base", "class_made_anew", (("after", "", "class Trainer(...):\n    ...", "class Trainer:\n    pass"),)),
    Mutant("01/base", "class_is_another", (("after", "", "class Trainer(...):\n    ...", "Trainer = object"),)),
    Mutant(
        "01/micro-batch",
        "method_replaced_at_module_level",
        (("after", "", "class Trainer(...):\n    ...", "Trainer.train = lambda self: None"),),
    ),
    Mutant(
        "04/encode",
        "function_is_another",
        (("after", "", "def mapping_to_cli_args():\n    ...", "mapping_to_cli_args = list"),),
    ),
    Mutant("03/base", "class_made_anew", (("after", "", "class StateTracker:\n    ...", "StateTracker = object"),)),
)
HARMLESS = (
    Mutant("01/micro-batch", "guarded_continue", (("before", TRAIN, ACCUMULATE, "if step < 0:\n    continue"),)),
    Mutant("01/micro-batch", "loop_with_break", (("before", TRAIN, ACCUMULATE, "while True:\n    break"),)),
    Mutant(
        "01/micro-batch",
        "caught",
        (("before", TRAIN, ACCUMULATE, "try:\n    raise ValueError\nexcept ValueError:\n    pass"),),
    ),
    Mutant("01/micro-batch", "read_after", (("after", TRAIN, ACCUMULATE, "print(step, prepared_batch)"),)),
    Mutant("01/base", "decorated", (("after", "", "class Trainer(...):\n    ...", "Trainer = final(Trainer)"),)),
    Mutant("01/start-features", "another_before", (("before", PARSE, SAFETY, "self.accelerator = Accelerator()"),)),
)
