"""The protocol's names of element types, and NumPy's."""

from typing import Any, Final

import numpy as np

from inference.engine.interface import Datatype

NUMPY: Final[dict[Datatype, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}

NAMES: Final[dict[np.dtype[Any], Datatype]] = {dtype: name for name, dtype in NUMPY.items()}
