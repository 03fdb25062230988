"""Record, open, salvage and edit episodes on this machine."""
