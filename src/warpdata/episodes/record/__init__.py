"""Recording: the recorder and the writers of the documents, their journals, threads and clocks."""
