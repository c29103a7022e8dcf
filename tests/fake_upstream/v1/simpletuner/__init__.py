"""An invented trainer, first release."""

__version__ = "1.0.0"
