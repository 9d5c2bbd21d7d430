"""How busy the machine or container of a worker is, measured as the KCL measures it.

Parsers and formulas are pure: text in, readings out, two readings to a percentage. Probes put a file or an address
and a clock around them; `platform` chooses the probe; `series` turns samples into what the worker's row carries.
"""
