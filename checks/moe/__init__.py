"""What `step.moe` holds against a mixture of experts, part by part."""
