"""The services behind the emulator besides Kinesis: DynamoDB and S3 by moto, and STS. Each serves one request at
a time.
"""
