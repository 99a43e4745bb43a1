#!/usr/bin/env bash
# A study on a real Slurm: one node, started here from Debian's packages, in a folder of its own, and ended again.
#
#   apt-get install slurm-wlm munge
#   sudo tests/slurm_check.sh [PYTHON]        # a Python with landscope's dependencies and submitit; default python3
#
# Three runs: one as it should be, one that needs more time than its job is given (Slurm warns it, submitit puts it back
# into the queue, it goes on from its checkpoint), one whose process is killed (it is missed in the queue and submitted
# again). Takes some two minutes. Exit code 0: all of it came out right; 77: Slurm is not installed or we are not root.
set -euo pipefail

python=${1:-python3}
tests=$(cd "$(dirname "$0")" && pwd)
for tool in munged slurmctld slurmd sbatch srun squeue scontrol; do
    command -v "$tool" >/dev/null || { echo "skipped: $tool is not installed (apt-get install slurm-wlm munge)"; exit 77; }
done
[ "$(id -u)" = 0 ] || { echo "skipped: only root can start slurmd"; exit 77; }
"$python" -c "import submitit" || { echo "skipped: $python has no submitit"; exit 77; }

place=$(mktemp -d -t slurm_check.XXXXXX)
chmod 755 "$place"
pids=()
finish() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait "${pids[@]}" 2>/dev/null || true
    rm -rf "$place"
}
trap finish EXIT

host=$(hostname -s)
head -c 1024 /dev/urandom > "$place/munge.key"
chmod 400 "$place/munge.key"
munged --foreground --force --key-file="$place/munge.key" --socket="$place/munge.socket" --pid-file="$place/munge.pid" \
    --log-file="$place/munge.log" --seed-file="$place/munge.seed" 2>"$place/munged.log" &
pids+=($!)

mkdir -p "$place/state" "$place/spool"
cat > "$place/slurm.conf" <<CONF
ClusterName=check
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=26817
SlurmdPort=26818
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$place/munge.socket,cred_expire=10
StateSaveLocation=$place/state
SlurmdSpoolDir=$place/spool
SlurmctldPidFile=$place/slurmctld.pid
SlurmdPidFile=$place/slurmd.pid
SlurmctldLogFile=$place/slurmctld.log
SlurmdLogFile=$place/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=5
SchedulerParameters=batch_sched_delay=1,sched_interval=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=FORCE:4 State=UP
CONF
export SLURM_CONF="$place/slurm.conf"
slurmctld -D 2>/dev/null &
pids+=($!)
slurmd -D 2>/dev/null &
pids+=($!)
for _ in $(seq 60); do
    sinfo --noheader --format=%T 2>/dev/null | grep -q idle && break
    sleep 1
done
sinfo --noheader --format=%T | grep -q idle || { cat "$place"/*.log; echo "failed: Slurm did not come up"; exit 1; }
echo "Slurm $(sinfo --version | cut -d' ' -f2) is up on $host"

export PYTHONPATH="$tests/../src:$tests/studies${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS=1
"$python" - "$place/store" <<'STUDY'
import signal
import sys
import time

from store_work import chain

from landscope.studies.executors import Job, SlurmExecutor
from landscope.studies.store import Store
from store_work import work

jobs = {
    "as it should be": Job.of({"seed": 1, "steps": 3}),
    "out of time": Job.of({"seed": 2, "steps": 35, "pause": 1.0}),
    "killed": Job.of({"seed": 3, "steps": 3, "at": 3, "signal": int(signal.SIGKILL), "times": 1}),
}
names = {job.key: name for name, job in jobs.items()}
store, began = Store(sys.argv[1]), time.monotonic()


def tell(event):
    print(f"{time.monotonic() - began:6.1f} s  {names[event.key]:15}  {event.kind:9}  {event.detail}", flush=True)


executor = SlurmExecutor(store, work, minutes=1, options={"slurm_signal_delay_s": 30})
executor.run(list(jobs.values()), on_event=tell).check()
for name, job in jobs.items():
    run = store.run(job.key)
    begins = run.path("log.txt").read_text().count("begins with")
    assert run.record()["last"] == chain(job.spec["seed"], job.spec["steps"])[-1], name
    assert begins == 1 if name == "as it should be" else begins > 1, (name, begins)
    print(f"{name}: {begins} begun, record right")
STUDY
echo "all came out right"
