"""The papers' claims, tested, and their tables, on recordings and cards of this project."""
