"""The only package that imports Dagster: leader sensor, worker job, assets, checks, resources, component."""

from dagster_shared.libraries import DagsterLibraryRegistry

from kcl_dagster import __version__

# Dagster shows the versions of the libraries of a code location. It compares the versions of its own libraries with
# its own version. This library has other versions.
DagsterLibraryRegistry.register("kcl-dagster", __version__, is_dagster_package=False)
