"""What everything speaks: probes, estimates, parameter vectors, registries, errors, seeds."""

from landscope.core.safe_start import leave_current_folder

leave_current_folder()  # here, because nothing else of ours is imported before, and so nothing that a file could stand in for
