"""What the clickstream runs on: which AWS, which Spark, which lake, and how production and demo differ."""
