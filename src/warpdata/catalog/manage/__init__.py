"""Managing catalogs: history, copies, repair, removal, reports."""
