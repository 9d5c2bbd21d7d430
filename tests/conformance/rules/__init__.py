"""Rules of the KCL that `kcl_dagster` does not follow: conformance cases and the simulator compare with them."""
