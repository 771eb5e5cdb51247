"""Where a framework's run is started when it is not this machine: Slurm."""
