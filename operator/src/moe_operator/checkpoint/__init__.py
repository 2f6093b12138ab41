"""What a model is: config.json, safetensors index, quantization → Checkpoint."""
