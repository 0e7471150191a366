//! Serial kernels, written to be obviously right.
