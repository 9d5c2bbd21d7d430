"""New projects: `kcl-dagster init` writes a consumer, its tests, and the files that deploy it."""
