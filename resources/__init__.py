"""What the reference deployment runs on: which AWS, which Spark."""
