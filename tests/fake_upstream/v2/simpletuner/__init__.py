"""An invented trainer, second release."""

__version__ = "2.0.0"
