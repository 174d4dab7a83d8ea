"""Batching that the program finds by itself: recursion over a structure becomes rows of tensors, level by level."""
