"""One engine: scheduler, KV blocks, step time, lifecycle, and the hardware and models it is made of."""
