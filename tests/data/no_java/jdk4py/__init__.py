"""Stands for the package of a Java runtime, without one."""
