"""Many recordings as one data set: Parquet files, asked by DuckDB or Spark (docs/fleet.md)."""
