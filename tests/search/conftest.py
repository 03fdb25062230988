"""Search tests run side by side: one thread each is faster than threads that wait for each other."""

from __future__ import annotations

import faiss

faiss.omp_set_num_threads(1)
