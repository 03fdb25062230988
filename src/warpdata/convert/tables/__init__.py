"""Files of columns without a known layout: .npz archives and Parquet tables, with a mapping of their columns."""
