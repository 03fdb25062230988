"""The recording journal behind a `.partial`: framed, checksummed, memory-mapped, salvageable."""
