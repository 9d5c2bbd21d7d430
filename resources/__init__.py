"""The resources of the clickstream: AWS, Spark, the lake, and the differences between production and the demo."""
