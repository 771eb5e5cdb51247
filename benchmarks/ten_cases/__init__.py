"""Ten runs of one training step, four healthy and six faulty, as published rules and Plumbline's checks judge them."""
