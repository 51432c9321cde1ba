"""Output of a run: metrics, console, run folder, videos, rollout files, report.html."""
