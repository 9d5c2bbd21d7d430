"""One leader per application: what it decides (pure) and one tick of it."""
