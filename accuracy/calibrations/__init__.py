"""How long steps of real engines take: `kind: calibrate`, and `kind: calibrate_gpu` for all models of a GPU."""
