"""What a run reports while it goes and leaves behind: metrics, console, run folder, videos, rollout
files, report.html.
"""
