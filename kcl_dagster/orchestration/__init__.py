"""The Dagster definitions: leader sensor, worker job, assets, checks, resources, component. The packages that this
package imports do not import Dagster."""

from dagster_shared.libraries import DagsterLibraryRegistry

from kcl_dagster import __version__

# Dagster shows the registered version with each code location. Without `is_dagster_package=False`, Dagster would
# warn that this version is not the version of Dagster.
DagsterLibraryRegistry.register("kcl-dagster", __version__, is_dagster_package=False)
