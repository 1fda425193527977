"""ELIAS, End-to-end Learning to Index and Search, on Ray."""
