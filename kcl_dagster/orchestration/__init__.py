"""The only place that knows Dagster: leader sensor, worker job, assets, checks, resources, component."""

from dagster_shared.libraries import DagsterLibraryRegistry

from kcl_dagster import __version__

# Dagster shows the versions of the libraries that a code location uses. It compares those of its own libraries with
# its own version; the version of this one is independent of it.
DagsterLibraryRegistry.register("kcl-dagster", __version__, is_dagster_package=False)
