"""Wires a model, a loop and pictures together."""
