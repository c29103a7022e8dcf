"""The rebase tool: turns any SimpleTuner release into the GH200 fork by structural patches."""

REVISION = 3
"""Number of the fork's own release; the wheel is called X.Y.Z+gh200.REVISION."""
