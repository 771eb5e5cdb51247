"""What a worker does with a job, one module a kind; `perform` picks it."""
