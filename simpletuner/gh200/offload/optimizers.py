"""Which of SimpleTuner's optimizers step each parameter by itself, so that a step may go bucket by bucket.

A test steps SimpleTuner's whole list both ways and compares bits. Those with quantized state, or with a count of steps
per group, are not here.
"""

from __future__ import annotations

_OURS = "simpletuner.helpers.training.optimizers"
# By the names of the config key `optimizer`.
STREAMABLE = {
    "torch-adam": "torch.optim.adam.Adam",
    "torch-adamw": "torch.optim.adamw.AdamW",
    "torch-sgd": "torch.optim.sgd.SGD",
    "torch-radam": "torch.optim.radam.RAdam",
    "torch-nadam": "torch.optim.nadam.NAdam",
    "torch-rmsprop": "torch.optim.rmsprop.RMSprop",
    "torch-adagrad": "torch.optim.adagrad.Adagrad",
    "torch-adadelta": "torch.optim.adadelta.Adadelta",
    "torch-adafactor": "torch.optim.Adafactor",
    "torch-adamax": "torch.optim.adamax.Adamax",
    "torch-asgd": "torch.optim.asgd.ASGD",
    "adamw_bf16": f"{_OURS}.adamw_bfloat16.AdamWBF16",
    "adamw_schedulefree": f"{_OURS}.adamw_schedulefree.AdamWScheduleFreeKahan",
    "adamw_schedulefree+aggressive": f"{_OURS}.adamw_schedulefree.AdamWScheduleFreeKahan",
    "soap": f"{_OURS}.soap.SOAP",
}


def is_streamable_choice(name: str) -> bool:
    """Whether the optimizer that a config names can be streamed; an unnamed one is SimpleTuner's `adamw_bf16`."""
    return not name or name in STREAMABLE


def class_path(optimizer: object) -> str:
    """Module and name of an optimizer's class."""
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def is_streamable(optimizer: object) -> bool:
    """Whether this optimizer steps each parameter by itself."""
    return class_path(optimizer) in STREAMABLE.values()
