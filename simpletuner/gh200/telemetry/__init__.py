"""What a run measures of itself while it lasts: one record per interval and rank, for people, scripts and trackers."""
