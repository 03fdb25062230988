"""Finishing what a crash left: unfinished recordings, what they hold, and receipts of what was lost."""
