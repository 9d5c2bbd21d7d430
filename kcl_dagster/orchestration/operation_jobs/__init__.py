"""What an operator does, as operations of the admin job."""
