"""Automatic differentiation as a transformation of programs: reverse mode (`reverse`), forward mode (`forward`)."""
