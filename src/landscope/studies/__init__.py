"""From a spec to runs and their records: the store, the executors, the tables."""
