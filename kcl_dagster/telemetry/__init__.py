"""Telemetry of an application outside of Dagster: log lines, OpenMetrics, CloudWatch, OpenTelemetry. Telemetry
never delays a worker.
"""
