"""The command line."""

from relay.starting import leave_quietly

leave_quietly()  # before what takes long to import
