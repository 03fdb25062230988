"""Threads, forks, locks and what operating systems do differently."""
