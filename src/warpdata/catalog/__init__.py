"""Published datasets: build, publish, resolve, read. A name is enough to use one, from anywhere."""
