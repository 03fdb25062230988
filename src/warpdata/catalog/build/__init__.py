"""Building versions: tables, artifacts and episodes from what users have."""
