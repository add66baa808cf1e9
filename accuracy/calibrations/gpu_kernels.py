"""What kernel tables say of a GPU, for a fit to served results to begin with."""

from accuracy.calibrations.gpu_config import CalibrateGpu
from replicas.calibration.aiconfigurator import KernelError, LeftOut, read_efficiencies
from replicas.calibration.gpu import Efficiencies
from replicas.calibration.kernel_tables import read_kernel_times
from replicas.calibration.kernel_times import KernelTimes
from sim.errors import ConfigError


def start_of(config: CalibrateGpu, left_out: LeftOut) -> Efficiencies:
    """Returns where the fit starts: `start`, with what kernel tables say in its place; counts their rows that are not used.

    Raises:
        ConfigError: the tables are missing or wrong.
    """
    if config.kernels is None:
        return config.start
    try:
        return config.start.model_copy(update=read_efficiencies(config.kernels, config.gpu, left_out)._asdict())
    except KernelError as error:
        raise ConfigError(f"kernels {error}") from error


def kernel_times_of(config: CalibrateGpu, left_out: LeftOut) -> KernelTimes | None:
    """Returns what single kernels take by the config's tables; None without any. Counts their rows that are not used.

    Raises:
        ConfigError: the tables are missing or wrong.
    """
    if config.kernel_times is None:
        return None
    try:
        return read_kernel_times(config.kernel_times.folder, config.kernel_times.all_reduces, left_out)
    except KernelError as error:
        raise ConfigError(f"kernel_times {error}") from error
