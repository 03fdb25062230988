"""Episodes read from where they are stored: directories, shards, videos and other programs' files."""
