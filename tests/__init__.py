import os

# Before any library starts its threads: test processes share the cores already, and threads that wait for one spin.
for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")
