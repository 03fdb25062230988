"""Vector segment files (RVF): every record of the container, read and written."""
