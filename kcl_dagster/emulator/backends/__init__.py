"""The services of the emulator except Kinesis: DynamoDB and S3, which use moto, and STS. Each service serves one
request at a time.
"""
