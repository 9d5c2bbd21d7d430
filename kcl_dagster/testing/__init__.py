"""Everything a consumer's tests need and AWS would charge for: services in memory, a clock, a whole fleet."""
