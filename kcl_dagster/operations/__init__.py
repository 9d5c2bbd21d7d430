"""The operations on an application: inspect, check, intervene. Each is a command of the CLI, and some are jobs in
Dagster."""
