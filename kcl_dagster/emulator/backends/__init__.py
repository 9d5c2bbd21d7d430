"""DynamoDB and S3, which are moto's, and STS: called in process, one request of each at a time."""
