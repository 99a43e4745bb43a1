"""Where runs are done: on this machine, on a Ray cluster, by Slurm. All of them give the same records.

An executor is made with a store and the name of the function that does one run, `package.module:function`; its settings are
the fields of its class. Ray and submitit are imported when a study is run on them.
"""

from landscope.core.registry import Registry
from landscope.studies.executors.base import Event, Executor, Job, OnEvent, Resources, Summary, ignore
from landscope.studies.executors.local import LocalExecutor
from landscope.studies.executors.ray_cluster import RayExecutor
from landscope.studies.executors.slurm import SlurmExecutor

__all__ = [
    "EXECUTORS",
    "Event",
    "Executor",
    "Job",
    "LocalExecutor",
    "OnEvent",
    "RayExecutor",
    "Resources",
    "SlurmExecutor",
    "Summary",
    "ignore",
]

EXECUTORS: Registry[type[LocalExecutor] | type[RayExecutor] | type[SlurmExecutor]] = Registry("executor")
"""Executors by name."""
EXECUTORS.register("local")(LocalExecutor)
EXECUTORS.register("ray")(RayExecutor)
EXECUTORS.register("slurm")(SlurmExecutor)
