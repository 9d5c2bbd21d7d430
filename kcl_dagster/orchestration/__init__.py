"""The only place that knows Dagster: leader sensor, worker job, assets, checks, resources, component."""
