"""Explorers: one module per lesson, and the panel they share."""
