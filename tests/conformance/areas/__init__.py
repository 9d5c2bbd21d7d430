"""Adapters, one per area of the case file: they hand what is given to production code and say what it did.

An adapter never decides anything itself and never knows a case by its name or values. Importing this package
registers all of them.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
