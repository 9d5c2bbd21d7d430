"""Other ways to see an application than Dagster: log lines, OpenMetrics, CloudWatch. None may delay a worker."""
