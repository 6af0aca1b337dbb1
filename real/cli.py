"""The entry point of installations made before `real.commands` had its name."""

from real.commands import register as register
