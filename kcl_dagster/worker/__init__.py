"""A worker: the leases that it holds, the batches that it makes of their records, its start and its stop."""
