"""Measures how busy the machine or container of a worker is, as the KCL measures it.

Parsers and formulas are pure: they convert text to readings, and two readings to a percentage. Probes read a file
or an address at a given time. `platform` chooses the probe; `series` converts samples to the values in the worker's
row.
"""
