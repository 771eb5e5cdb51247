"""An endpoint that serves the model: what it answered, and how that compares with the trainer's own answers."""
