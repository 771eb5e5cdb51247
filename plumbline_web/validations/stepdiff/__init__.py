"""From verdict documents to what the step page draws: pure functions, and the views that call them."""
