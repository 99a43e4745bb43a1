"""What everything speaks: probes, estimates, parameter vectors, registries, errors, seeds."""
