"""What an owner of a real machine runs once: every claim of ours tried there, marked shown, refuted or not tested."""
