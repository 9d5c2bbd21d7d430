"""DynamoDB: the application's leases, worker rows, leader lock and state, in the KCL's wire format."""
