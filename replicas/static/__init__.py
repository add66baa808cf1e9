"""Static batching, the engine before continuous batching: nobody joins a batch that runs."""
