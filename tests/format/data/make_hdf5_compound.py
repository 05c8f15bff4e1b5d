"""hdf5_compound.h5: a float dataset beside one whose elements are pairs, which no tensor type holds (h5py 3)."""

import h5py
import numpy as np

with h5py.File("hdf5_compound.h5", "w") as file:
    file["w"] = np.arange(3, dtype="f4")
    file["pairs"] = np.zeros(2, dtype=[("a", "i4"), ("b", "f8")])
