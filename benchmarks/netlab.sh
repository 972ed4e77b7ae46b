#!/usr/bin/env bash
# Hosts joined by rate-limited links, on one Linux machine: each host is a network namespace with
# its own host name and /dev/shm, its link a veth pair into one bridge, limited in both directions.
#
#   netlab.sh up N RATE [DELAY]          make N hosts, e.g.  up 4 1gbit 50us
#   netlab.sh run N COMMAND...           mpirun with one rank on each of the first N hosts
#   netlab.sh down [N]                   remove them; N is accepted and not needed
#   netlab.sh once N RATE COMMAND...     up, run, and down whatever happens
#
# Needs root, iproute2 and MPICH; Python and mpirun are taken from VENV, by default ../.venv.
# LAB (default uz, at most 6 letters) names the hosts, so several labs can exist side by side. WRAP is
# put before each rank's command: WRAP="taskset -c 0", say, or a profiler.
set -euo pipefail

self=$(readlink -f "$0")
lab=${LAB:-uz}
venv=${VENV:-$(dirname "$(dirname "$self")")/.venv}

fail() { echo "netlab: $*" >&2; exit 1; }

check_machine() {
  [ "$(id -u)" = 0 ] || fail "network namespaces need root, found user $(id -un)"
  for tool in ip tc unshare; do
    type -P $tool >/dev/null || fail "$tool not found (Debian: apt install iproute2 util-linux)"
  done
}

# The queue holds 10 ms of traffic: with 2 ms, four senders to one host lose enough packets to stall.
limit_link() {
  local device=$1 rate=$2; shift 2  # what remains is the command that enters the device's host
  "$@" tc qdisc add dev "$device" root handle 1: tbf rate "$rate" burst 256kb latency 10ms
}

up() {
  local n=$1 rate=$2 delay=${3:-} i
  check_machine
  [[ $n =~ ^[1-9][0-9]*$ ]] || fail "expected a number of hosts, found '$n'"
  ip link show "$lab-br" >/dev/null 2>&1 && fail "lab '$lab' is up already: netlab.sh down"
  trap down EXIT
  ip link add "$lab-br" type bridge
  ip link set "$lab-br" up
  for ((i = 0; i < n; i++)); do add_host "$i" "$n" "$rate" "$delay"; done
  trap - EXIT
}

add_host() {
  local i=$1 n=$2 rate=$3 delay=$4 j
  ip netns add "$lab$i"
  ip link add "$lab-v$i" type veth peer name eth0 netns "$lab$i"
  ip link set "$lab-v$i" master "$lab-br" up
  ip -n "$lab$i" addr add "10.77.0.$((i + 1))/24" dev eth0
  ip -n "$lab$i" link set eth0 up
  ip -n "$lab$i" link set lo up
  limit_link eth0 "$rate" ip netns exec "$lab$i"
  limit_link "$lab-v$i" "$rate"
  if [ -n "$delay" ]; then
    ip netns exec "$lab$i" tc qdisc add dev eth0 parent 1:1 handle 10: netem delay "$delay" limit 100000
  fi
  # ip netns exec mounts what is in this folder over /etc: each host knows the others by name.
  mkdir -p "/etc/netns/$lab$i"
  { echo "127.0.0.1 localhost"
    for ((j = 0; j < n; j++)); do echo "10.77.0.$((j + 1)) $lab$j"; done
  } > "/etc/netns/$lab$i/hosts"
}

down() {
  check_machine
  local name
  for name in $(ip netns list | awk '{print $1}' | grep -xE "$lab[0-9]+"); do
    ip netns pids "$name" | xargs -r kill -9 2>/dev/null || true
    # The kernel takes a removed namespace apart later: its link must not outlive this command.
    ip link del "$lab-v${name#"$lab"}" 2>/dev/null || true
    ip netns del "$name"
    rm -rf "/etc/netns/$name"
  done
  ip link del "$lab-br" 2>/dev/null || true
}

# Every host takes all cores for its own. So the codec's threads get its share of them, and with more
# hosts than cores MPICH sleeps while it waits: else a rank with work waits for those that poll.
share_cores() {
  local share=$(($(nproc) / $1))
  export UZIPMPI_THREADS=${UZIPMPI_THREADS:-$((share > 1 ? share : 1))}
  local throttle=MPIR_CVAR_CH4_PROGRESS_THROTTLE
  [ "$share" -gt 0 ] || export "$throttle=${!throttle:-true}" "${throttle}_NO_PROGRESS_COUNT=256"
}

run() {
  local n=$1; shift
  check_machine
  [ -e "/run/netns/$lab$((n - 1))" ] || fail "no host $lab$((n - 1)): netlab.sh up $n RATE"
  export PATH=$venv/bin:$PATH
  case $(mpirun --version 2>&1) in *HYDRA*) ;; *) fail "expected MPICH's mpirun in $venv/bin" ;; esac
  # Neither UCX nor libfabric may find the shared memory that these hosts really have.
  export UCX_TLS=tcp,self UCX_NET_DEVICES=eth0 FI_PROVIDER=tcp FI_TCP_IFACE=eth0
  share_cores "$n"
  enter "${lab}0" mpirun -np "$n" -hosts "$(seq -s, -f "$lab%g" 0 $((n - 1)))" \
    -launcher ssh -launcher-exec "$self" -iface eth0 ${WRAP:-} "$@"
}

once() {
  local n=$1 rate=$2; shift 2
  up "$n" "$rate"
  trap down EXIT
  run "$n" "$@"
}

enter() {
  local host=$1; shift
  ip netns exec "$host" unshare --uts --mount bash -c \
    'echo "$0" > /proc/sys/kernel/hostname; mount -t tmpfs tmpfs /dev/shm; exec "$@"' "$host" "$@"
}

# mpirun calls its launcher as it would ssh: options, a host, and the command line for its shell.
launch() {
  while [[ ${1:-} == -* ]]; do shift; done
  local host=$1; shift
  enter "$host" bash -c "$*"
}

case ${1:-} in
  up | run | down | once) "$@" ;;
  -*) launch "$@" ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$self"; exit 2 ;;
esac
