"""hdf5_latest.h5: a chunked dataset as HDF5 2.0 lays it out under libver="latest", which libhdf5 1.10 cannot read (h5py 3.16)."""

import h5py
import numpy as np

with h5py.File("hdf5_latest.h5", "w", libver="latest") as file:
    file.create_dataset("c", data=np.arange(4, dtype="f4"), chunks=(4,), compression="gzip")
