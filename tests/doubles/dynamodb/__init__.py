"""DynamoDB in memory, behind boto3's method names."""

from tests.doubles.dynamodb.client import DEFAULT_PAGE_ITEMS, FakeDynamoDB

__all__ = ["DEFAULT_PAGE_ITEMS", "FakeDynamoDB"]
