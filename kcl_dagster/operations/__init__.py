"""What an operator does with an application: look, check, steer. Verbs of the CLI, and jobs in Dagster."""
