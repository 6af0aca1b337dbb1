"""The papers' claims, tested on recordings and on cards of trained drafters."""
