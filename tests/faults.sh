# Sourced by the jobs of test_slurm.py before their cell: $FAULTS holds what shall befall each task in its first submission,
# $RESULTS is their results folder.
task=$SLURM_ARRAY_TASK_ID
if [ ! -e "$FAULTS/over" ] && [ -z "${SLURM_RESTART_COUNT:-}" ]; then
  case "$(cat "$FAULTS/fault_$task" 2> /dev/null)" in
    disk) ulimit -f 1 ;;       # no file above 1 KiB: what a full disk does
    memory) ulimit -d 105000 ;; # too little even to import torch: nothing of the cell's own can tell. At 120000 torch can spin
    halt) # after its first sample the cell stands still, until a signal of Slurm's, which brings SIGCONT with it
      (
        until status=$(grep -l "\"slurm\": \"$SLURM_JOB_ID\"" "$RESULTS"/runs/*/*/status.json); do sleep 0.05; done
        until [ -s "${status%/*}/../turns.jsonl" ]; do sleep 0.01; done
        kill -STOP "$(sed -n 's/.*"pid": \([0-9]*\).*/\1/p' "$status")"
        echo "${status%/*}" > "$FAULTS/halting_$task"
        mv "$FAULTS/halting_$task" "$FAULTS/halted_$task"
      ) > /dev/null 2>&1 &
      ;;
  esac
fi
