"""`replicas: {kind: surrogate}`: an engine that is simulated."""

from replicas.engine import Engine


class Surrogate(Engine):
    """An engine whose steps are timed by a roofline. Options of vLLM keep its names and its API server's defaults (0.32.0).

    With efficiencies of 1.0 and no overheads, as by default, times are the textbook's lower bound; real engines reach 50 to
    80 % of it. With a `calibration` they are those of a measured engine. Models are taken as bf16 unless `dtype` or
    `quantization` says otherwise.
    """
