"""Jobs of the clickstream beside those that its consumer brings."""
