"""Support for record processors that are written for the KCL's own Python package."""

from kcl_dagster.worker.kclpy import install_stand_in

__all__ = ["install_stand_in"]
