#!/usr/bin/env bash
# A real Slurm on one machine, for tests: a controller, two nodes on this host with two fake GPUs each, loopback only.
#   scripts/slurm_local.sh start [FOLDER]     prints the environment to use, as in: eval "$(scripts/slurm_local.sh start)"
#   scripts/slurm_local.sh stop [FOLDER]      takes it down by its own pid files; the folder with its logs goes, too
# Needs root and Debian's packages: apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge
# Partitions: low (default; its jobs are preempted and requeued) and high. CTLD_PORT sets the first of three ports.
set -euo pipefail

folder=$(realpath -m "${2:-${TMPDIR:-/tmp}/skipbench-slurm}")
port=${CTLD_PORT:-16817}

die() { echo "slurm_local: $*" >&2; exit 1; }

settings() {
  local cpus half
  cpus=$(nproc)
  half=$((cpus > 4 ? cpus / 2 : 2))
  cat > "$folder/slurm.conf" <<CONF
ClusterName=skipbench
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits until the credentials of its last start have expired.
AuthInfo=socket=$folder/munge.socket,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
SlurmdParameters=config_overrides
# What follows does without cgroups, which a container has not.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
KillWait=10
MinJobAge=300
SlurmctldTimeout=30
SlurmdTimeout=30
InactiveLimit=0
MaxArraySize=1001
GresTypes=gpu
NodeName=node1 NodeHostname=localhost NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=$half RealMemory=4000 Gres=gpu:fake:2
NodeName=node2 NodeHostname=localhost NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=$half RealMemory=4000 Gres=gpu:fake:2
PartitionName=low Nodes=node1,node2 Default=YES MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high Nodes=node1,node2 MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
CONF
  for gpu in 0 1 2 3; do
    mknod -m 666 "$folder/gpu$gpu" c 1 3 # as /dev/null: Slurm wants a device, nothing opens it
  done
  cat > "$folder/gres.conf" <<CONF
NodeName=node1 Name=gpu Type=fake File=$folder/gpu[0-1]
NodeName=node2 Name=gpu Type=fake File=$folder/gpu[2-3]
CONF
}

start() {
  [ "$(id -u)" = 0 ] || die "must run as root"
  for program in munged slurmctld slurmd sbatch; do
    command -v "$program" > /dev/null ||
      die "no $program; apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge"
  done
  [ ! -e "$folder" ] || die "$folder is there already; stop it first: $0 stop $folder"
  mkdir -p "$folder"/{state,spool-node1,spool-node2}
  chmod 755 "$folder"
  trap 'stop; die "did not start; the log above says why"' ERR
  head -c 128 /dev/urandom > "$folder/munge.key"
  chmod 400 "$folder/munge.key"
  # Forced: it would refuse a socket below a folder that others may write to, such as /tmp.
  munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
    --seed-file="$folder/munge.seed" --log-file="$folder/munged.log" 2> "$folder/munged.err"
  settings
  export SLURM_CONF="$folder/slurm.conf"
  slurmctld -c > "$folder/start.log" 2>&1
  slurmd -N node1 >> "$folder/start.log" 2>&1
  slurmd -N node2 >> "$folder/start.log" 2>&1
  for _ in $(seq 100); do
    if [ "$(sinfo -h -N -p low -t idle -o %N 2> /dev/null | wc -l)" = 2 ]; then
      trap - ERR
      echo "export SLURM_CONF=$folder/slurm.conf"
      return
    fi
    sleep 0.2
  done
  sinfo -N -l >&2 || true
  false
}

# Ends what a pid file names, if it still is the program that wrote it.
end() {
  local pid
  pid=$(cat "$1" 2> /dev/null) || return 0
  [ "$(cat "/proc/$pid/comm" 2> /dev/null)" = "$2" ] || return 0
  kill "$pid" 2> /dev/null || true
  for _ in $(seq 100); do
    [ -d "/proc/$pid" ] && ! grep -q '^State:\sZ' "/proc/$pid/status" 2> /dev/null || return 0
    sleep 0.1
  done
  kill -9 "$pid" 2> /dev/null || true
}

stop() {
  trap - ERR
  [ -e "$folder/slurm.conf" ] || [ -e "$folder/munge.key" ] || die "$folder is no cluster of this script"
  export SLURM_CONF="$folder/slurm.conf"
  # A job outlives its slurmd.
  if [ -e "$folder/slurmctld.pid" ] && [ -n "$(squeue -h 2> /dev/null)" ]; then
    scancel --state=PENDING 2> /dev/null || true
    scancel --state=RUNNING 2> /dev/null || true
    for _ in $(seq 150); do
      [ -n "$(squeue -h 2> /dev/null)" ] || break
      sleep 0.1
    done
  fi
  end "$folder/slurmd-node1.pid" slurmd
  end "$folder/slurmd-node2.pid" slurmd
  end "$folder/slurmctld.pid" slurmctld
  end "$folder/munged.pid" munged
  tail -n 5 "$folder"/*.log "$folder"/*.err > "${KEEP_LOGS:-/dev/null}" 2> /dev/null || true
  rm -rf "$folder"
}

case "${1:-}" in
  start) start ;;
  stop) stop ;;
  *) die "wanted: start|stop [FOLDER]" ;;
esac
