"""vLLM V1's engine (0.32): its scheduler, block pool, prefix cache, speculation and pipeline."""
