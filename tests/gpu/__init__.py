"""What can only be shown on a GPU; needs torch, transformers and pytest, and neither database nor browser."""
