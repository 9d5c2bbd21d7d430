"""The connection to AWS that boto3 finds in the environment. The demo sets AWS_ENDPOINT_URL to an embedded AWS."""

import kcl_dagster as kcl

AWS = kcl.KclResource()
