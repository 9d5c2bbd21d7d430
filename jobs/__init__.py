"""What runs in the reference deployment: the Dagster jobs and schedules, the producer, and the demo."""
