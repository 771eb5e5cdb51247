"""NVIDIA NeMo AutoModel: its own fine-tuning recipe, on one process or divided over several."""
