"""Jobs of the clickstream, in addition to those that `build_kcl_definitions` makes for the consumer."""
