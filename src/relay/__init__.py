"""Relay: a deep-learning compiler in which a network is a program and an operator is one expression."""
