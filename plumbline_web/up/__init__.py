"""`plumbline up` and its kin: PostgreSQL, Redis, web server, workers and beat as children of one process."""
