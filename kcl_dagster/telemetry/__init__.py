"""Telemetry of an application outside of Dagster: log lines, OpenMetrics, CloudWatch, OpenTelemetry. It never
delays a worker.
"""
