"""A stand-in for docker and podman."""
