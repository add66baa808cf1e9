"""Words for arrays: whole numbers, and which of them."""

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
