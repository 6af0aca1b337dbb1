"""The built-in policies, one mechanism a file."""

from simspec.policies.fixed import fixed

BUILTIN = {"fixed": fixed}
