"""Bench: this machine's times beside what a person would write, its ceilings, and growth."""
